// SPDX-License-Identifier: Apache-2.0
//
// Tunings of one device take turns, each of which lasts for some measurements: what a device's worker has loaded for one tuning is of no use to
// another, and a worker serves one tenant. If they alternated measurement by measurement, each would wait for a driver's start and for its tensors.
//
// Threads. Take waits; it and the end of a Turn may be called from any thread. One mutex, under which nothing is called but `stopped`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "cache/clock.h"
#include "cache/mutex.h"

namespace kiln::server {

class DeviceTurns {
 public:
  struct Options {
    std::chrono::milliseconds slice{2'000};  // that one has while another waits
    std::chrono::milliseconds idle{100};     // between two measurements, after which another may begin
  };
  DeviceTurns(Options options, const cache::Clock& clock) : options_(options), clock_(clock) {}

  // One measurement. The tuning's turn goes on after it ends.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)), device_(other.device_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (turns_ != nullptr) turns_->Finished(device_);
    }

   private:
    friend DeviceTurns;
    Turn(DeviceTurns& turns, const void* device) : turns_(&turns), device_(device) {}
    DeviceTurns* turns_;
    const void* device_;
  };

  // Tunings that wait for a turn now.
  std::size_t waiting() const;

  // Nothing where the time is over before, or `stopped` says so. A tuning makes one measurement at a time.
  std::optional<Turn> Take(const void* device, std::uint64_t tuning, cache::SteadyTime until, const std::function<bool()>& stopped);

 private:
  struct Device {
    std::uint64_t tuning = 0;  // whose turn it is
    bool measures = false;
    cache::SteadyTime since{};     // its turn began
    cache::SteadyTime finished{};  // its last measurement
    std::deque<std::uint64_t> waiting;
  };
  bool MayBegin(const Device& device, std::uint64_t tuning) const KILN_REQUIRES(mutex_);
  void Finished(const void* device);

  const Options options_;
  const cache::Clock& clock_;
  mutable cache::Mutex mutex_;
  cache::CondVar changed_;
  std::map<const void*, Device> devices_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::server
