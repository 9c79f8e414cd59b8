// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/runtime/driver.h"

namespace kiln::runtime {

struct DeviceInfo {
  DriverKind kind = DriverKind::kCuda;
  int index = 0;
  std::string name;  // "NVIDIA H200"
  std::string arch;  // "cuda:sm_90a", "hip:gfx942": the target to compile for
  uint64_t memory_bytes = 0;
  std::string driver_version;  // "13.0"
  uint64_t cache_bytes = 0;    // of its last level before memory; 0: the driver does not tell
  std::string pci;             // where on the bus it is, "0000:17:00.0"; empty: the driver does not tell
};

Result<std::vector<DeviceInfo>> ListDevices(const Driver& driver);

// The target (as kiln.v1.Artifact.target names it) runs on the device; the error says what to compile for instead.
Result<void> CheckTarget(std::string_view target, const DeviceInfo& device);

// A device with its primary context, which torch and the CUDA runtime use too. Thread-safe.
class Device {
 public:
  static Result<std::shared_ptr<Device>> Open(std::shared_ptr<const Driver> driver, int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  const Driver& driver() const { return *driver_; }

  // Makes the device current for the calling thread, and puts back what was before.
  class Scope {
   public:
    Scope(Scope&& other) noexcept : device_(std::exchange(other.device_, nullptr)), before_(other.before_) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope();

   private:
    friend class Device;
    Scope(const Device* device, void* before) : device_(device), before_(before) {}
    const Device* device_;  // null: nothing to put back
    void* before_;          // CUDA: context; HIP: device index
  };
  Result<Scope> Enter() const;

  Result<void> Synchronize() const;  // waits for all work on the device

  // While this object lives, calls of this thread that capture nothing (loading code, allocating, waiting for a stream that is not
  // captured) do not break a graph being captured in any thread. Create it within a Scope.
  class BesideCaptures {
   public:
    explicit BesideCaptures(const Device& device) : exchange_(device.driver_->exchange_capture_mode) {
      if (exchange_ && exchange_(&mode_) != 0) exchange_ = nullptr;  // nothing was changed, so nothing is put back
    }
    ~BesideCaptures() {
      if (exchange_) exchange_(&mode_);
    }
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

   private:
    static constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
    int (*exchange_)(int*);
    int mode_ = kRelaxed;
  };

 private:
  Device(std::shared_ptr<const Driver> driver, DeviceInfo info) : driver_(std::move(driver)), info_(std::move(info)) {}

  std::shared_ptr<const Driver> driver_;
  DeviceInfo info_;
  int handle_ = 0;
  void* context_ = nullptr;  // CUDA only
};

}  // namespace kiln::runtime
