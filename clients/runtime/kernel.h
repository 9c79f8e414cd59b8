// SPDX-License-Identifier: Apache-2.0
//
// A loaded artifact that can be launched: binding, argument packing and workspaces around a Module.
//
// Concurrency: a Kernel may be launched from several threads. One mutex is held for a launch, because the launches of one artifact
// share workspaces and must reach the stream together; it protects the plans, with their tensor maps, and the workspaces. A launch that
// a graph captures has workspaces of the graph's own, which shares them with no other launch, wherever it is replayed; but it
// does not own the code, so the Kernel must outlive every graph that captured it. The driver has copied a launch's parameters when it
// returns, so the next launch may change them. Nothing waits for the device while the mutex is held, except the driver itself when a
// stream's queue is full or a workspace grows.
#pragma once

#include <array>

#include "cache/mutex.h"
#include "clients/runtime/bind.h"
#include "clients/runtime/memory.h"
#include "clients/runtime/module.h"
#include "clients/runtime/tensor_map.h"

namespace kiln::runtime {

class Kernel {
 public:
  // `name`: what error texts call the kernel; empty: the name of its first entry.
  static Result<std::unique_ptr<Kernel>> Load(const Artifact& artifact, std::shared_ptr<const Device> device, std::string name = {});

  // Checks `args` (one for each parameter) and puts the launches on `stream` (null: the default one). Does not wait; the tensors
  // must outlive the work, and where a graph captures it, they and the Kernel must outlive the graph. Arguments like those of an earlier
  // call (same types, shapes, strides) take a short path.
  Result<void> Launch(std::span<const Arg> args, void* stream);

  const Binder& binder() const { return binder_; }
  const Module& module() const { return *module_; }
  const Device& device() const { return *device_; }
  const std::shared_ptr<const Device>& shared_device() const { return device_; }
  const std::string& target() const { return target_; }

 private:
  // A kernel parameter whose value changes from call to call, beside scalars.
  struct Patch {
    uint32_t slot;
    enum class From : uint8_t { kTensor, kWorkspace } from;
    uint32_t index;
  };
  struct ScalarSlot {
    uint32_t slot;
    uint32_t param;
  };
  struct Entry {
    void* function = nullptr;
    LaunchConfig config{};
    std::array<LaunchAttribute, 2> attributes;  // the first config.attribute_count of them
    bool cooperative = false;                   // all blocks must be on the device at one time
    bool empty = false;
    std::vector<uint64_t> slots;
    std::vector<Patch> patches;
    std::vector<ScalarSlot> scalars;
    std::vector<void*> pointers;  // to each slot, or to its tensor map in the plan
  };
  // A tensor map of the artifact, kept while its tensor stays where it is; the plan's key holds shape and strides.
  struct CachedMap {
    bool used = false;     // by a launch that takes place
    uint64_t address = 0;  // of the tensor it was encoded for; 0: none yet
    EncodedTensorMap encoded;
  };
  struct Plan {
    std::vector<uint64_t> key;
    std::vector<Entry> entries;
    std::vector<CachedMap> maps;  // one for each of the artifact's
    std::vector<BoundView> views;
    std::vector<uint64_t> workspace_bytes;
  };
  struct StreamWorkspaces {
    void* stream;
    std::vector<DeviceBuffer> buffers;
    std::vector<uint64_t> addresses;  // theirs
  };
  static constexpr size_t kMaxKeyWords = 256;
  static constexpr size_t kMaxPlans = 16;
  static constexpr size_t kMaxWorkspaceStreams = 8;

  Kernel(Binder binder, std::unique_ptr<Module> module, std::shared_ptr<const Device> device, std::string target)
      : binder_(std::move(binder)), module_(std::move(module)), device_(std::move(device)), target_(std::move(target)) {}

  Result<Plan*> FindPlan(std::span<const Arg> args) KILN_REQUIRES(mutex_);
  std::unique_ptr<Plan> MakePlan(const Binding& binding) const;
  Entry MakeEntry(size_t launch, const Binding& binding) const;
  void PointAtParams(size_t launch, Plan& plan) const;
  Result<void> EncodeMaps(Plan& plan, std::span<const Arg> args) const;
  Result<void> SetScalars(Plan& plan, std::span<const Arg> args) const;
  Result<void> LaunchEntries(Plan& plan, std::span<const Arg> args, std::span<const uint64_t> workspaces, void* stream);
  Result<void> LaunchEntry(Entry& entry, std::span<const Arg> args, std::span<const uint64_t> workspaces, void* stream);
  Result<std::span<const uint64_t>> Workspaces(const Plan& plan, void* stream) KILN_REQUIRES(mutex_);
  bool IsCaptured(void* stream) const;
  Result<void> LaunchInGraph(Plan& plan, std::span<const Arg> args, void* stream);
  Result<void> AllocateInGraph(const Plan& plan, void* stream, std::vector<uint64_t>& addresses) const;

  const Binder binder_;
  const std::unique_ptr<Module> module_;
  const std::shared_ptr<const Device> device_;
  const std::string target_;
  cache::Mutex mutex_;
  std::vector<std::unique_ptr<Plan>> plans_ KILN_GUARDED_BY(mutex_);  // most recently used first
  std::vector<StreamWorkspaces> workspaces_ KILN_GUARDED_BY(mutex_);  // likewise; two streams may run the kernel at the same time
};

}  // namespace kiln::runtime
