// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kiln::runtime {
namespace {

constexpr size_t kMaxSlots = 1024;

}  // namespace

Result<std::unique_ptr<Kernel>> Kernel::Load(const Artifact& artifact, std::shared_ptr<const Device> device, std::string name) {
  if (artifact.launch.launches.size() == 0) return ArtifactError("the artifact launches nothing");
  if (name.empty()) name = artifact.launch.launches[0].entry;
  const Place place = device->info().kind == DriverKind::kCuda ? Place::kCuda : Place::kHip;
  auto binder = Binder::Create(artifact.launch, std::move(name), place, device->info().index);
  if (!binder) return std::unexpected(binder.error());
  for (const auto& launch : artifact.launch.launches)
    if (size_t(launch.args.size()) > kMaxSlots)
      return ArtifactError(fmt::format("kernel {} takes {} parameters; at most {} are possible", launch.entry, launch.args.size(), kMaxSlots));
  if (!artifact.launch.tensor_maps.empty() && !device->driver().tensor_map_encode)
    return std::unexpected(Error{Error::Kind::kDriver,
                                 "the kernel copies tensors by TMA, but the driver has no cuTensorMapEncodeTiled: "
                                 "update it to CUDA 12 or newer, or compile with CompileOptions.disable_tma",
                                 {},
                                 "load the kernel"});
  auto module = Module::Load(device, artifact);
  if (!module) return std::unexpected(module.error());
  return std::unique_ptr<Kernel>(new Kernel(std::move(*binder), std::move(*module), std::move(device), artifact.target));
}

Kernel::Entry Kernel::MakeEntry(size_t index, const Binding& binding) const {
  const auto& launch = binder_.info().launches[index];
  Entry entry;
  entry.function = module_->function(index);
  entry.empty = binding.grids[index].empty;
  std::copy(binding.grids[index].size.begin(), binding.grids[index].size.end(), entry.config.grid);
  entry.config.block[0] = launch.threads;
  entry.config.block[1] = entry.config.block[2] = 1;
  entry.config.shared_bytes = launch.dynamic_shared_bytes;
  entry.cooperative = std::ranges::any_of(launch.args, [](const KernelArg& arg) { return arg.kind == KernelArg::Kind::kBlockCounter; });
  if (launch.cluster[0] > 0) {
    LaunchAttribute& cluster = entry.attributes[entry.config.attribute_count++];
    cluster.id = LaunchAttribute::kClusterDimension;
    for (size_t d = 0; d < 3; ++d) cluster.value[d] = std::max(launch.cluster[d], 1u);
  }
  if (entry.cooperative) entry.attributes[entry.config.attribute_count++] = {.id = LaunchAttribute::kCooperative, .value = {1}};
  for (const auto& arg : launch.args) {
    const auto slot = uint32_t(entry.slots.size());
    entry.slots.push_back(0);
    switch (arg.kind) {
      case KernelArg::Kind::kTensor: entry.patches.push_back({slot, Patch::From::kTensor, arg.index}); break;
      case KernelArg::Kind::kScalar: entry.scalars.push_back({slot, arg.index}); break;
      case KernelArg::Kind::kWorkspace:
      case KernelArg::Kind::kZeroedWorkspace:
      case KernelArg::Kind::kBlockCounter: entry.patches.push_back({slot, Patch::From::kWorkspace, arg.index}); break;
      case KernelArg::Kind::kTensorMap: break;
      default: entry.slots[slot] = uint64_t(binding.symbols[arg.index]); break;
    }
  }
  return entry;
}

// Once the plan's vectors have their final sizes.
void Kernel::PointAtParams(size_t index, Plan& plan) const {
  Entry& entry = plan.entries[index];
  const auto& args = binder_.info().launches[index].args;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].kind == KernelArg::Kind::kTensorMap) {
      CachedMap& map = plan.maps[args[i].index];
      map.used |= !entry.empty;
      entry.pointers.push_back(&map.encoded);
    } else {
      entry.pointers.push_back(&entry.slots[i]);
    }
  }
}

std::unique_ptr<Kernel::Plan> Kernel::MakePlan(const Binding& binding) const {
  auto plan = std::make_unique<Plan>();
  plan->workspace_bytes = binding.workspace_bytes;
  plan->views = binding.views;
  plan->maps.resize(binder_.info().tensor_maps.size());
  for (size_t i = 0; i < binding.grids.size(); ++i) plan->entries.push_back(MakeEntry(i, binding));
  for (size_t i = 0; i < binding.grids.size(); ++i) PointAtParams(i, *plan);
  return plan;
}

Result<Kernel::Plan*> Kernel::FindPlan(std::span<const Arg> args) {
  uint64_t words[kMaxKeyWords];
  size_t used = 0;
  const bool keyed = binder_.Key(args, words, used);
  for (size_t i = 0; keyed && i < plans_.size(); ++i) {
    const std::vector<uint64_t>& key = plans_[i]->key;
    if (key.size() != used || std::memcmp(key.data(), words, used * sizeof *words) != 0) continue;
    std::rotate(plans_.begin(), plans_.begin() + long(i), plans_.begin() + long(i) + 1);
    return plans_.front().get();
  }
  auto binding = binder_.Bind(args);
  if (!binding) return std::unexpected(binding.error());
  auto plan = MakePlan(*binding);
  if (keyed) plan->key.assign(words, words + used);
  if (plans_.size() == kMaxPlans) plans_.pop_back();
  plans_.insert(plans_.begin(), std::move(plan));
  return plans_.front().get();
}

Result<std::span<const uint64_t>> Kernel::Workspaces(const Plan& plan, void* stream) {
  if (plan.workspace_bytes.empty()) return std::span<const uint64_t>();
  auto found = std::find_if(workspaces_.begin(), workspaces_.end(), [&](const auto& w) { return w.stream == stream; });
  if (found == workspaces_.end()) {
    if (workspaces_.size() == kMaxWorkspaceStreams) workspaces_.pop_back();  // freeing waits for its users
    workspaces_.insert(workspaces_.begin(), StreamWorkspaces{stream, {}, {}});
    workspaces_.front().buffers.resize(plan.workspace_bytes.size());
    workspaces_.front().addresses.resize(plan.workspace_bytes.size());
  } else {
    std::rotate(workspaces_.begin(), found, found + 1);
  }
  std::vector<DeviceBuffer>& buffers = workspaces_.front().buffers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].bytes() >= plan.workspace_bytes[i]) continue;
    const Device::BesideCaptures beside(*device_);
    if (auto ok = SynchronizeStream(*device_, stream); !ok) return std::unexpected(ok.error());
    workspaces_.front().addresses[i] = 0;
    buffers[i] = DeviceBuffer();  // before the larger one is asked for
    auto larger = DeviceBuffer::Allocate(device_, plan.workspace_bytes[i]);
    if (!larger) return std::unexpected(larger.error());
    if (binder_.info().workspaces[i].zeroed) {
      if (auto ok = larger->Fill(0, stream); !ok) return std::unexpected(ok.error());
    }
    buffers[i] = std::move(*larger);
    workspaces_.front().addresses[i] = buffers[i].address();
  }
  return std::span<const uint64_t>(workspaces_.front().addresses);
}

// If the driver does not say whether a stream is captured, assume that it is not: the launch itself reports the error.
bool Kernel::IsCaptured(void* stream) const {
  int status = 0;
  const auto asked = device_->driver().stream_is_capturing;
  return asked && asked(stream, &status) == 0 && status != 0;
}

// Allocates the graph's workspaces before the launch, not after it, so that it can be replayed; zeros are written in each replay. On
// failure, `addresses` holds those allocated so far.
Result<void> Kernel::AllocateInGraph(const Plan& plan, void* stream, std::vector<uint64_t>& addresses) const {
  const Driver& driver = device_->driver();
  for (size_t i = 0; i < plan.workspace_bytes.size(); ++i) {
    const uint64_t bytes = plan.workspace_bytes[i];
    addresses.push_back(0);
    if (bytes == 0) continue;
    if (!driver.mem_alloc_async || !driver.mem_free_async)
      return std::unexpected(Error{Error::Kind::kDriver,
                                   fmt::format("{} needs memory of its own in a captured graph, which this driver cannot "
                                               "allocate: update the driver, or launch the kernel outside of graphs",
                                               binder_.name()),
                                   {},
                                   "launch the kernel"});
    uint64_t address = 0;
    const int status = driver.mem_alloc_async(&address, bytes, stream);
    if (auto ok = driver.Check(status, fmt::format("allocate {} bytes in a captured graph", bytes)); !ok) return ok;
    addresses.back() = address;
    if (!binder_.info().workspaces[i].zeroed) continue;
    if (auto ok = driver.Check(driver.fill_bytes(address, 0, bytes, stream), "fill memory in a captured graph"); !ok) return ok;
  }
  return {};
}

Result<void> Kernel::LaunchInGraph(Plan& plan, std::span<const Arg> args, void* stream) {
  std::vector<uint64_t> addresses;
  auto launched = AllocateInGraph(plan, stream, addresses);
  if (launched) launched = LaunchEntries(plan, args, addresses, stream);
  // Also after a failure, which need not have ended the capture: a graph with memory that it does not free can be launched only once.
  const Driver& driver = device_->driver();
  for (const uint64_t address : addresses) {
    if (address == 0) continue;
    auto freed = driver.Check(driver.mem_free_async(address, stream), "free memory in a captured graph");
    if (launched) launched = std::move(freed);
  }
  return launched;
}

Result<void> Kernel::EncodeMaps(Plan& plan, std::span<const Arg> args) const {
  const LaunchInfo& info = binder_.info();
  for (size_t i = 0; i < plan.maps.size(); ++i) {
    CachedMap& cached = plan.maps[i];
    const TensorMap& map = info.tensor_maps[i];
    const Tensor& tensor = args[map.tensor].tensor;
    if (!cached.used || cached.address == tensor.data) [[likely]]
      continue;
    const LaunchParam& param = info.params[map.tensor];
    auto spec = DescribeTensor(map, param, MappedTensor(map, tensor, plan.views));
    if (!spec) return ArgumentError(fmt::format("{}.{}: {}", binder_.name(), param.name, spec.error()));
    cached.address = 0;
    if (auto ok = EncodeTensorMap(device_->driver(), *spec, binder_.name(), param.name, cached.encoded); !ok) return ok;
    cached.address = tensor.data;
  }
  return {};
}

Result<void> Kernel::SetScalars(Plan& plan, std::span<const Arg> args) const {
  for (Entry& entry : plan.entries) {
    for (const ScalarSlot& scalar : entry.scalars) {
      auto bits = binder_.Scalar(args, scalar.param);
      if (!bits) return std::unexpected(bits.error());
      entry.slots[scalar.slot] = *bits;
    }
  }
  return {};
}

Result<void> Kernel::LaunchEntry(Entry& entry, std::span<const Arg> args, std::span<const uint64_t> workspaces, void* stream) {
  for (const Patch& patch : entry.patches) {
    uint64_t& slot = entry.slots[patch.slot];
    switch (patch.from) {
      case Patch::From::kTensor: slot = args[patch.index].kind == Arg::Kind::kTensor ? args[patch.index].tensor.data : 0; break;
      case Patch::From::kWorkspace: slot = workspaces[patch.index]; break;
    }
  }
  void** const pointers = entry.pointers.data();
  const Driver& driver = device_->driver();
  LaunchConfig& c = entry.config;
  int status = 0;
  if (c.attribute_count > 0 && driver.launch_ex) {
    c.stream = stream;
    c.attributes = entry.attributes.data();
    status = driver.launch_ex(&c, entry.function, pointers, nullptr);
  } else if (entry.cooperative) {
    return std::unexpected(Error{Error::Kind::kDriver,
                                 fmt::format("the blocks of {} wait for each other, and this driver has no cuLaunchKernelEx: "
                                             "update it to CUDA 12 or newer",
                                             binder_.name()),
                                 {},
                                 "launch the kernel"});
  } else {
    status =
        driver.launch(entry.function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared_bytes, stream, pointers, nullptr);
  }
  if (status == 0) [[likely]]
    return {};
  return std::unexpected(driver.MakeError(status, fmt::format("launch {}", binder_.name())));
}

Result<void> Kernel::Launch(std::span<const Arg> args, void* stream) {
  cache::MutexLock lock(mutex_);
  auto plan = FindPlan(args);
  if (!plan) return std::unexpected(plan.error());
  auto scope = device_->Enter();
  if (!scope) return std::unexpected(scope.error());
  if (auto ok = EncodeMaps(**plan, args); !ok) return ok;
  if (auto ok = SetScalars(**plan, args); !ok) return ok;
  if (!(*plan)->workspace_bytes.empty() && IsCaptured(stream)) return LaunchInGraph(**plan, args, stream);
  auto workspaces = Workspaces(**plan, stream);
  if (!workspaces) return std::unexpected(workspaces.error());
  return LaunchEntries(**plan, args, *workspaces, stream);
}

Result<void> Kernel::LaunchEntries(Plan& plan, std::span<const Arg> args, std::span<const uint64_t> workspaces, void* stream) {
  for (Entry& entry : plan.entries) {
    if (entry.empty) continue;
    if (auto ok = LaunchEntry(entry, args, workspaces, stream); !ok) return ok;
  }
  return {};
}

}  // namespace kiln::runtime
