// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/memory.h"

#include <fmt/format.h>

namespace kiln::runtime {
namespace {

template <class Call>
Result<void> Within(const Device& device, std::string_view operation, Call call) {
  auto scope = device.Enter();
  if (!scope) return std::unexpected(scope.error());
  return device.driver().Check(call(device.driver()), operation);
}

template <class Call>
Result<void> BesideCaptures(const Device& device, std::string_view operation, Call call) {
  return Within(device, operation, [&](const Driver& driver) {
    const Device::BesideCaptures beside(device);
    return call(driver);
  });
}

Result<void> CheckSize(uint64_t bytes, uint64_t capacity) {
  if (bytes <= capacity) return {};
  return ArgumentError(fmt::format("{} bytes do not fit a device buffer of {}", bytes, capacity));
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::Allocate(std::shared_ptr<const Device> device, uint64_t bytes) {
  DeviceBuffer buffer;
  if (bytes > 0) {
    auto ok = BesideCaptures(*device, fmt::format("allocate {} bytes on device {}", bytes, device->info().index),
                             [&](const Driver& driver) { return driver.mem_alloc(&buffer.address_, bytes); });
    if (!ok) return std::unexpected(ok.error());
  }
  buffer.bytes_ = bytes;
  buffer.device_ = std::move(device);
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (!device_ || !address_) return;
  // A failure here repeats an earlier one (a poisoned context), which was reported where it happened.
  (void)BesideCaptures(*device_, "free device memory", [&](const Driver& driver) { return driver.mem_free(address_); });
}

Result<void> DeviceBuffer::CopyFrom(const void* host, uint64_t bytes, void* stream) const {
  if (auto ok = CheckSize(bytes, bytes_); !ok || bytes == 0) return ok;
  return Within(*device_, fmt::format("copy {} bytes to the device", bytes),
                [&](const Driver& driver) { return driver.copy_to_device(address_, host, bytes, stream); });
}

Result<void> DeviceBuffer::CopyFrom(const DeviceBuffer& other, void* stream) const {
  if (auto ok = CheckSize(other.bytes_, bytes_); !ok || other.bytes_ == 0) return ok;
  return Within(*device_, fmt::format("copy {} bytes on the device", other.bytes_),
                [&](const Driver& driver) { return driver.copy_on_device(address_, other.address_, other.bytes_, stream); });
}

Result<void> DeviceBuffer::CopyTo(void* host, uint64_t bytes, void* stream) const {
  if (auto ok = CheckSize(bytes, bytes_); !ok || bytes == 0) return ok;
  return Within(*device_, fmt::format("copy {} bytes from the device", bytes),
                [&](const Driver& driver) { return driver.copy_to_host(host, address_, bytes, stream); });
}

Result<void> DeviceBuffer::Fill(uint8_t byte, void* stream) const {
  if (bytes_ == 0) return {};
  return Within(*device_, "fill device memory", [&](const Driver& driver) { return driver.fill_bytes(address_, byte, bytes_, stream); });
}

Result<void> SynchronizeStream(const Device& device, void* stream) {
  return Within(device, "wait for the stream", [&](const Driver& driver) { return driver.stream_synchronize(stream); });
}

}  // namespace kiln::runtime
