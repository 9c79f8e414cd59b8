// SPDX-License-Identifier: Apache-2.0
#include "server/execute/emulated_launch.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace kiln::server {
namespace {

constexpr std::uint64_t kAlignment = 256;  // of a driver's allocations

}  // namespace

std::expected<EmulatedLaunch, std::string> EmulatedLaunch::Bind(const runtime::Binder& binder, std::span<const runtime::Arg> args,
                                                                std::vector<emulator::Memory> memory) {
  auto binding = binder.Bind(args);
  if (!binding) return std::unexpected(std::move(binding.error().message));
  auto maps = runtime::EmulateTensorMaps(binder, args, *binding);
  if (!maps) return std::unexpected(std::move(maps.error().message));
  return EmulatedLaunch(binder, args, std::move(memory), std::move(*binding), std::move(*maps));
}

EmulatedLaunch::EmulatedLaunch(const runtime::Binder& binder, std::span<const runtime::Arg> args, std::vector<emulator::Memory> memory,
                               runtime::Binding binding, std::vector<runtime::EncodedTensorMap> maps)
    : binder_(binder), args_(args), memory_(std::move(memory)), binding_(std::move(binding)), maps_(std::move(maps)) {
  for (std::size_t i = 0; i < binding_.workspace_bytes.size(); ++i) AddWorkspace(i);
}

// Fills the workspace with bytes that are NaN in every type, unless it must start with zeros: reads before a write then show in the
// results.
void EmulatedLaunch::AddWorkspace(std::size_t index) {
  const std::uint64_t bytes = binding_.workspace_bytes[index];
  workspaces_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes + kAlignment));
  const auto address = reinterpret_cast<std::uint64_t>(workspaces_.back().get());
  workspace_addresses_.push_back((address + kAlignment - 1) / kAlignment * kAlignment);
  auto* const data = reinterpret_cast<void*>(workspace_addresses_.back());
  const std::vector<std::int64_t>& shape = binding_.workspace_shapes[index];
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  const runtime::Workspace& workspace = binder_.info().workspaces[index];
  std::memset(data, workspace.zeroed ? 0 : 0xff, bytes);
  memory_.push_back({data, bytes, std::max(1u, runtime::Find(workspace.dtype)->bits / 8u),
                     workspace.name.empty() ? "workspace " + std::to_string(index) : workspace.name, shape, std::move(strides)});
}

std::expected<emulator::Report, std::string> EmulatedLaunch::Run(emulator::Program& program, const emulator::Options& options) {
  emulator::Report all{.findings = {}, .finished = true};
  for (std::size_t i = 0; i < binding_.grids.size() && all.finished; ++i) {
    if (binding_.grids[i].empty) continue;
    const auto launch = Prepare(i);
    if (!launch) return std::unexpected(launch.error());
    auto report = program.Run(*launch, memory_, options);
    if (!report) return report;
    all.finished = report->finished;
    std::ranges::move(report->findings, std::back_inserter(all.findings));
  }
  return all;
}

std::expected<emulator::LaunchArgs, std::string> EmulatedLaunch::Prepare(std::size_t index) {
  const runtime::LaunchSpec& spec = binder_.info().launches[index];
  emulator::LaunchArgs launch{spec.entry, binding_.grids[index].size, spec.threads, spec.dynamic_shared_bytes, {}};
  if (spec.cluster[0] != 0) launch.cluster = spec.cluster;
  for (const runtime::KernelArg& arg : spec.args) {
    const auto value = Value(arg);
    if (!value) return std::unexpected(value.error());
    launch.args.push_back(*value);
  }
  return launch;
}

std::expected<std::uint64_t, std::string> EmulatedLaunch::Value(const runtime::KernelArg& arg) {
  using Kind = runtime::KernelArg::Kind;
  switch (arg.kind) {
    case Kind::kTensor: return args_[arg.index].tensor.data;
    case Kind::kWorkspace:
    case Kind::kZeroedWorkspace:
    case Kind::kBlockCounter: return workspace_addresses_[arg.index];
    case Kind::kSymbol: return static_cast<std::uint64_t>(binding_.symbols[arg.index]);
    case Kind::kTensorMap: return reinterpret_cast<std::uint64_t>(&maps_[arg.index]);
    case Kind::kScalar: {
      const auto bits = binder_.Scalar(args_, arg.index);
      if (!bits) return std::unexpected(bits.error().message);
      return *bits;
    }
    case Kind::kNone: break;
  }
  return std::unexpected("the kernel takes an argument of a kind that the emulator does not have");
}

}  // namespace kiln::server
