// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "clients/runtime/artifact.h"
#include "clients/runtime/device.h"

namespace kiln::runtime {

struct EntryResources {
  std::string entry;
  int registers = 0;
  int local_bytes = 0;   // per thread: spills and arrays
  int shared_bytes = 0;  // static
  int dynamic_shared_bytes = 0;
  int max_threads = 0;  // in a block, with these registers
};

// An artifact's code on a device. Unloaded with the object.
class Module {
 public:
  // PTX is compiled by the driver; a cubin in the artifact is preferred where the driver takes it. Every entry that a launch
  // names is looked up, and the driver told how much dynamic shared memory and how large a cluster it will ask for.
  static Result<std::unique_ptr<Module>> Load(std::shared_ptr<const Device> device, const Artifact& artifact);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const Device& device() const { return *device_; }
  void* function(size_t launch) const { return functions_[launch]; }
  std::span<const EntryResources> resources() const { return resources_; }  // one for each launch
  const std::string& log() const { return log_; }                           // of the driver's compiler: registers and spills
  std::string_view loaded_from() const { return loaded_from_; }

 private:
  explicit Module(std::shared_ptr<const Device> device) : device_(std::move(device)) {}
  Result<void> LoadCode(const Artifact& artifact);
  enum class Jit : uint8_t { kNone, kUnoptimized, kOptimized };  // what the driver's compiler does
  Result<void> LoadImage(const std::string& image, std::string_view what, Jit jit = Jit::kNone);
  Result<void> PrepareLaunch(const LaunchSpec& launch);

  std::shared_ptr<const Device> device_;
  void* handle_ = nullptr;
  std::vector<void*> functions_;
  std::vector<EntryResources> resources_;
  std::string log_;
  std::string_view loaded_from_;
};

}  // namespace kiln::runtime
