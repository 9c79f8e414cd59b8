// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "cache/clock.h"

namespace kiln::cache::testing {

// Another clock, ahead of it by what a test has let pass. It tells how often other threads than the test's own have read its steady time: who does
// something when it is time for it has looked then, also where there was nothing to do.
class WatchedClock final : public Clock {
 public:
  explicit WatchedClock(const Clock& clock) : clock_(clock) {}

  WallTime WallNow() const override { return clock_.WallNow() + std::chrono::microseconds(ahead_); }
  SteadyTime SteadyNow() const override {
    if (std::this_thread::get_id() != maker_) ++looks_;
    return clock_.SteadyNow() + std::chrono::microseconds(ahead_);
  }
  void Advance(std::chrono::microseconds by) { ahead_ += by.count(); }
  std::uint64_t looks() const { return looks_; }

 private:
  const Clock& clock_;
  const std::thread::id maker_ = std::this_thread::get_id();
  std::atomic<std::int64_t> ahead_ = 0;
  mutable std::atomic<std::uint64_t> looks_ = 0;
};

}  // namespace kiln::cache::testing
