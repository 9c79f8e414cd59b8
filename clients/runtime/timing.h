// SPDX-License-Identifier: Apache-2.0
//
// Time on the device, by events.
#pragma once

#include "clients/runtime/kernel.h"

namespace kiln::runtime {

class Event {
 public:
  static Result<Event> Create(std::shared_ptr<const Device> device);
  Event(Event&& other) noexcept : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();

  Result<void> Record(void* stream = nullptr) const;
  Result<void> Synchronize() const;
  Result<bool> Done() const;
  Result<double> MillisecondsSince(const Event& start) const;  // both recorded; waits for this one

 private:
  Event(std::shared_ptr<const Device> device, void* handle) : device_(std::move(device)), handle_(handle) {}

  std::shared_ptr<const Device> device_;
  void* handle_ = nullptr;
};

// Microseconds of each of `repeat` launches after `warmup` that are not measured.
Result<std::vector<double>> MeasureLaunches(Kernel& kernel, std::span<const Arg> args, void* stream, int warmup, int repeat);

}  // namespace kiln::runtime
