// SPDX-License-Identifier: Apache-2.0
#include "server/tune/device_turns.h"

#include <algorithm>

namespace kiln::server {

bool DeviceTurns::MayBegin(const Device& device, std::uint64_t tuning) const {
  if (device.measures) return false;
  const auto now = clock_.SteadyNow();
  const bool is_over = now - device.since >= options_.slice;
  if (device.tuning == tuning && (!is_over || device.waiting.empty())) return true;
  if (!device.waiting.empty() && device.waiting.front() != tuning) return false;
  return device.tuning == 0 || is_over || now - device.finished >= options_.idle;
}

std::optional<DeviceTurns::Turn> DeviceTurns::Take(const void* which, std::uint64_t tuning, cache::SteadyTime until,
                                                   const std::function<bool()>& stopped) {
  constexpr std::chrono::milliseconds kLook{10};
  cache::MutexLock lock(mutex_);
  Device& device = devices_[which];
  bool waits = false;
  while (!MayBegin(device, tuning)) {
    if (!waits) device.waiting.push_back(tuning);
    waits = true;
    if (stopped() || clock_.SteadyNow() >= until) {
      std::erase(device.waiting, tuning);
      return std::nullopt;
    }
    changed_.WaitFor(mutex_, kLook);
  }
  if (waits) std::erase(device.waiting, tuning);
  if (std::exchange(device.tuning, tuning) != tuning || waits) device.since = clock_.SteadyNow();
  device.measures = true;
  return Turn(*this, which);
}

std::size_t DeviceTurns::waiting() const {
  cache::MutexLock lock(mutex_);
  std::size_t all = 0;
  for (const auto& [which, device] : devices_) all += device.waiting.size();
  return all;
}

void DeviceTurns::Finished(const void* which) {
  {
    cache::MutexLock lock(mutex_);
    Device& device = devices_[which];
    device.measures = false;
    device.finished = clock_.SteadyNow();
  }
  changed_.NotifyAll();
}

}  // namespace kiln::server
