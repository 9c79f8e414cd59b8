// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/timing.h"

namespace kiln::runtime {
namespace {

constexpr int kNotReadyCuda = 600;  // CUDA_ERROR_NOT_READY; hipErrorNotReady is the same number

}  // namespace

Result<Event> Event::Create(std::shared_ptr<const Device> device) {
  auto scope = device->Enter();
  if (!scope) return std::unexpected(scope.error());
  void* handle = nullptr;
  if (auto ok = device->driver().Check(device->driver().event_create(&handle, 0), "create an event"); !ok) return std::unexpected(ok.error());
  return Event(std::move(device), handle);
}

Event::~Event() {
  if (!handle_) return;
  if (auto scope = device_->Enter()) device_->driver().event_destroy(handle_);
}

Result<void> Event::Record(void* stream) const {
  auto scope = device_->Enter();
  if (!scope) return std::unexpected(scope.error());
  return device_->driver().Check(device_->driver().event_record(handle_, stream), "record an event");
}

Result<void> Event::Synchronize() const {
  auto scope = device_->Enter();
  if (!scope) return std::unexpected(scope.error());
  return device_->driver().Check(device_->driver().event_synchronize(handle_), "wait for an event");
}

Result<bool> Event::Done() const {
  auto scope = device_->Enter();
  if (!scope) return std::unexpected(scope.error());
  const int status = device_->driver().event_query(handle_);
  if (status == kNotReadyCuda) return false;
  if (auto ok = device_->driver().Check(status, "query an event"); !ok) return std::unexpected(ok.error());
  return true;
}

Result<double> Event::MillisecondsSince(const Event& start) const {
  if (auto ok = Synchronize(); !ok) return std::unexpected(ok.error());
  auto scope = device_->Enter();
  if (!scope) return std::unexpected(scope.error());
  float milliseconds = 0;
  if (auto ok = device_->driver().Check(device_->driver().event_elapsed(&milliseconds, start.handle_, handle_), "read an event"); !ok)
    return std::unexpected(ok.error());
  return double(milliseconds);
}

Result<std::vector<double>> MeasureLaunches(Kernel& kernel, std::span<const Arg> args, void* stream, int warmup, int repeat) {
  for (int i = 0; i < warmup; ++i)
    if (auto ok = kernel.Launch(args, stream); !ok) return std::unexpected(ok.error());
  std::vector<Event> events;
  for (int i = 0; i < 2 * repeat; ++i) {
    auto event = Event::Create(kernel.shared_device());
    if (!event) return std::unexpected(event.error());
    events.push_back(std::move(*event));
  }
  for (int i = 0; i < repeat; ++i) {
    if (auto ok = events[size_t(2 * i)].Record(stream); !ok) return std::unexpected(ok.error());
    if (auto ok = kernel.Launch(args, stream); !ok) return std::unexpected(ok.error());
    if (auto ok = events[size_t(2 * i + 1)].Record(stream); !ok) return std::unexpected(ok.error());
  }
  std::vector<double> microseconds;
  for (int i = 0; i < repeat; ++i) {
    auto milliseconds = events[size_t(2 * i + 1)].MillisecondsSince(events[size_t(2 * i)]);
    if (!milliseconds) return std::unexpected(milliseconds.error());
    microseconds.push_back(*milliseconds * 1000);
  }
  return microseconds;
}

}  // namespace kiln::runtime
