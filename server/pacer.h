// SPDX-License-Identifier: Apache-2.0
//
// What may be done only so often. Any thread.
#pragma once

#include <atomic>
#include <chrono>

namespace kiln::server {

class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether its time has come; the next comes `pause` later.
  bool Take(Clock::time_point now, Clock::duration pause) {
    Clock::rep due = due_;
    const Clock::rep at = now.time_since_epoch().count();
    return at >= due && due_.compare_exchange_strong(due, at + pause.count());
  }

 private:
  std::atomic<Clock::rep> due_ = 0;
};

}  // namespace kiln::server
