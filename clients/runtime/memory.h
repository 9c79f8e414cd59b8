// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "clients/runtime/device.h"

namespace kiln::runtime {

// Memory on a device; freed with the object. Move-only.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // 0 bytes give an empty buffer with address 0.
  static Result<DeviceBuffer> Allocate(std::shared_ptr<const Device> device, uint64_t bytes);

  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

  // Ordered on `stream`; from pageable memory the host data may be reused when the call returns, to it only after a wait.
  Result<void> CopyFrom(const void* host, uint64_t bytes, void* stream = nullptr) const;
  Result<void> CopyTo(void* host, uint64_t bytes, void* stream = nullptr) const;
  // From another buffer of this device, all of it.
  Result<void> CopyFrom(const DeviceBuffer& other, void* stream = nullptr) const;
  Result<void> Fill(uint8_t byte, void* stream = nullptr) const;

 private:
  std::shared_ptr<const Device> device_;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
};

// Waits for all work of a stream (null: the default one).
Result<void> SynchronizeStream(const Device& device, void* stream);

}  // namespace kiln::runtime
