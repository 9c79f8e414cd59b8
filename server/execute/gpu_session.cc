// SPDX-License-Identifier: Apache-2.0
#include "server/execute/gpu_session.h"

#include <utility>

#include <fmt/format.h>

#include "clients/runtime/timing.h"

namespace kiln::server {
namespace {

constexpr std::uint64_t kFlushBytes = std::uint64_t{256} << 20;  // where a driver does not tell: more than any GPU's caches hold
constexpr std::uint64_t kTimesTheCache = 2;

// What of a kernel's parameters decides how its tensors are given. Shapes and alignment are checked at every launch.
std::string SignatureOf(const runtime::Binder& binder) {
  std::string signature;
  for (const runtime::LaunchParam& param : binder.info().params) {
    signature += fmt::format("{} {} {} {};", static_cast<int>(param.dtype), param.tensor, param.output, param.written);
  }
  return signature;
}

}  // namespace

std::expected<void, GpuSession::Refusal> GpuSession::Prepare(const v1::DeviceRun& run, int memory, const runtime::Binder& binder) {
  std::string signature = SignatureOf(binder);
  if (tensors_ && signature == signature_) return {};
  tensors_.reset();
  copies_ = std::make_unique<GpuCopies>(device_);
  const auto place = device_->info().kind == runtime::DriverKind::kCuda ? runtime::Place::kCuda : runtime::Place::kHip;
  bool of_device = false;
  const auto give = [&](std::span<std::byte> host) {
    auto given = copies_->Give(host);
    of_device = !given;
    return given;
  };
  auto tensors = RunTensors::Create(run, memory, binder, {.place = place, .device = device_->info().index, .give = give});
  if (!tensors) return std::unexpected(Refusal{std::move(tensors.error()), of_device});
  if (auto kept = copies_->KeepGiven(*tensors, run.memory_used()); !kept) return std::unexpected(Refusal{kept.error().message, true});
  if (flush_.bytes() == 0) {
    const std::uint64_t cache = device_->info().cache_bytes;
    auto flush = runtime::DeviceBuffer::Allocate(device_, cache == 0 ? kFlushBytes : kTimesTheCache * cache);
    if (!flush) return std::unexpected(Refusal{flush.error().message, true});
    flush_ = std::move(*flush);
  }
  tensors_ = std::make_unique<RunTensors>(std::move(*tensors));
  signature_ = std::move(signature);
  return {};
}

runtime::Result<void> GpuSession::MakeReady() {
  if (auto restored = copies_->Restore(); !restored) return restored;
  return flush_.Fill(0);
}

runtime::Result<std::vector<double>> GpuSession::Measure(runtime::Kernel& kernel, unsigned repeat, const std::function<void()>& midst) {
  if (auto ready = MakeReady(); !ready) return std::unexpected(ready.error());
  if (auto ok = kernel.Launch(tensors_->args(), nullptr); !ok) return std::unexpected(ok.error());
  std::vector<std::pair<runtime::Event, runtime::Event>> events;
  for (unsigned i = 0; i < repeat; ++i) {
    auto begin = runtime::Event::Create(device_);
    if (!begin) return std::unexpected(begin.error());
    auto end = runtime::Event::Create(device_);
    if (!end) return std::unexpected(end.error());
    events.emplace_back(std::move(*begin), std::move(*end));
  }
  for (const auto& [begin, end] : events) {
    if (auto ready = MakeReady(); !ready) return std::unexpected(ready.error());
    if (auto ok = begin.Record(); !ok) return std::unexpected(ok.error());
    if (auto ok = kernel.Launch(tensors_->args(), nullptr); !ok) return std::unexpected(ok.error());
    if (auto ok = end.Record(); !ok) return std::unexpected(ok.error());
  }
  midst();
  std::vector<double> microseconds;
  for (const auto& [begin, end] : events) {
    auto milliseconds = end.MillisecondsSince(begin);
    if (!milliseconds) return std::unexpected(milliseconds.error());
    microseconds.push_back(*milliseconds * 1000);
  }
  return microseconds;
}

}  // namespace kiln::server
