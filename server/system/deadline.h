// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "cache/clock.h"

namespace kiln::server {

// A point in time of a clock, which must outlive this object, until which something waits.
class Deadline {
 public:
  Deadline(const cache::Clock& clock, std::chrono::steady_clock::duration patience) : clock_(&clock), at_(clock.SteadyNow() + patience) {}

  bool IsOver() const { return clock_->SteadyNow() >= at_; }

  // For poll: rounded up, so that a wait never ends before it; of an hour at most, after which it is asked again.
  int PollTimeout() const {
    constexpr std::chrono::milliseconds kMost = std::chrono::hours(1);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - clock_->SteadyNow());
    return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kMost).count());
  }

 private:
  const cache::Clock* clock_;
  cache::SteadyTime at_;
};

}  // namespace kiln::server
