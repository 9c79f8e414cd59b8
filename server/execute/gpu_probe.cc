// SPDX-License-Identifier: Apache-2.0
#include "server/execute/gpu_probe.h"

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "clients/runtime/artifact.h"
#include "clients/runtime/kernel.h"
#include "clients/runtime/memory.h"
#include "clients/runtime/timing.h"

namespace kiln::server {
namespace {

constexpr std::int64_t kWords = 4096;
constexpr std::int64_t kThreads = 128;

// PTX ISA 6.3, which every driver of our targets accepts. The comment makes the code unique, so that the driver's cache does not know it.
constexpr const char* kCopy = R"(.version 6.3
.target sm_75
.address_size 64
.visible .entry copy_words(.param .u64 source, .param .u64 destination, .param .u32 words)
{{
  .reg .pred %past;
  .reg .b32 %i, %block, %threads, %thread, %words, %word;
  .reg .b64 %offset, %from, %to;
  ld.param.u64 %from, [source];
  ld.param.u64 %to, [destination];
  ld.param.u32 %words, [words];
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %i, %block, %threads, %thread;
  setp.ge.u32 %past, %i, %words;
  @%past ret;
  mul.wide.u32 %offset, %i, 4;
  add.u64 %from, %from, %offset;
  add.u64 %to, %to, %offset;
  ld.global.u32 %word, [%from];
  st.global.u32 [%to], %word;
  ret;
}}
// {}
)";

runtime::HostNodes Constant(std::int64_t value) { return {{runtime::HostOp::kConst, value, 0, 0}}; }
runtime::HostNodes Symbol(std::int64_t index) { return {{runtime::HostOp::kSymbol, index, 0, 0}}; }

runtime::Artifact CopyProgram(int number, bool cluster) {
  using Kind = runtime::KernelArg::Kind;
  runtime::Artifact artifact{.target = "cuda:sm_75", .kind = runtime::CodeKind::kPtx, .code = fmt::format(kCopy, number)};
  artifact.launch.symbols = {{"words", runtime::DType::kI32}};
  artifact.launch.params = {
      {.name = "source", .dtype = runtime::DType::kI32, .tensor = true, .shape = {Symbol(0)}},
      {.name = "destination", .dtype = runtime::DType::kI32, .tensor = true, .shape = {Symbol(0)}, .output = true, .written = true}};
  runtime::LaunchSpec launch{.entry = "copy_words",
                             .grid = {Constant(kWords / kThreads)},
                             .threads = kThreads,
                             .args = {{Kind::kTensor, 0}, {Kind::kTensor, 1}, {Kind::kSymbol, 0}}};
  if (cluster) launch.cluster = {2, 1, 1};
  artifact.launch.launches = {std::move(launch)};
  return artifact;
}

using Copy = std::function<runtime::Result<void>(std::uint64_t from, std::uint64_t to)>;

// Whether words come back from the device as they went, through `copy` from one buffer to another where there is one.
runtime::Result<bool> RoundTrip(const std::shared_ptr<const runtime::Device>& device, int number, const Copy& copy) {
  std::vector<std::int32_t> words(kWords), back(kWords);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::int32_t>(i) * 7 + number + 1;
  constexpr std::uint64_t kBytes = kWords * sizeof(std::int32_t);
  auto from = runtime::DeviceBuffer::Allocate(device, kBytes);
  if (!from) return std::unexpected(from.error());
  auto to = runtime::DeviceBuffer::Allocate(device, kBytes);
  if (!to) return std::unexpected(to.error());
  if (auto done = to->Fill(0); !done) return std::unexpected(done.error());
  if (auto done = from->CopyFrom(words.data(), kBytes); !done) return std::unexpected(done.error());
  const runtime::DeviceBuffer& result = copy ? *to : *from;
  if (auto done = copy ? copy(from->address(), to->address()) : runtime::Result<void>(); !done) return std::unexpected(done.error());
  if (auto done = result.CopyTo(back.data(), kBytes); !done) return std::unexpected(done.error());
  if (auto done = runtime::SynchronizeStream(*device, nullptr); !done) return std::unexpected(done.error());
  return back == words;
}

runtime::Result<void> CopyByKernel(runtime::Kernel& kernel, const runtime::Device& device, std::uint64_t from, std::uint64_t to) {
  const auto tensor = [&](std::uint64_t address) {
    return runtime::Arg::Of(runtime::Tensor{.data = address, .dtype = runtime::DType::kI32, .device = device.info().index, .shape = {&kWords, 1}});
  };
  const std::array<runtime::Arg, 2> args = {tensor(from), tensor(to)};
  const auto timed = runtime::MeasureLaunches(kernel, args, nullptr, 0, 1);
  if (!timed) return std::unexpected(timed.error());
  return {};
}

bool HasClusters(const runtime::DeviceInfo& device) { return runtime::CheckTarget("cuda:sm_90", device).has_value(); }

}  // namespace

std::expected<void, std::string> ProbeGpu(const std::shared_ptr<const runtime::Device>& device, int number) {
  const bool cuda = device->info().kind == runtime::DriverKind::kCuda;
  for (const bool cluster : {false, true}) {
    if (cluster && !(cuda && HasClusters(device->info()))) break;
    std::unique_ptr<runtime::Kernel> kernel;
    if (cuda) {
      auto loaded = runtime::Kernel::Load(CopyProgram(number, cluster), device);
      if (!loaded) return std::unexpected(loaded.error().message);
      kernel = std::move(*loaded);
    }
    const Copy copy = [&](std::uint64_t from, std::uint64_t to) { return CopyByKernel(*kernel, *device, from, to); };
    const auto same = RoundTrip(device, number, cuda ? copy : Copy());
    if (!same) return std::unexpected(same.error().message);
    if (!*same) return std::unexpected("a kernel that copies leaves other words than it read");
  }
  return {};
}

}  // namespace kiln::server
