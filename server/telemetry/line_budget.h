// SPDX-License-Identifier: Apache-2.0
//
// How many lines of the log a peer gets: a stranger who calls in a loop must not fill the disk, nor make the threads that serve
// others wait for it. Peers share a few budgets by their hash, so that it takes no memory to have many names.
//
// Any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "cache/mutex.h"

namespace kiln::server {

class LineBudget {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint32_t kLines = 16;  // a second

  // Empty: no line now. Else how many lines were left out since the last one.
  std::optional<std::uint64_t> Take(std::string_view peer, Clock::time_point now) {
    cache::MutexLock lock(mutex_);
    Budget& budget = budgets_[std::hash<std::string_view>()(peer) % budgets_.size()];
    if (now - budget.began >= std::chrono::seconds(1)) {
      budget.began = now;
      budget.lines = 0;
    }
    if (budget.lines == kLines) {
      ++budget.left_out;
      return std::nullopt;
    }
    ++budget.lines;
    return std::exchange(budget.left_out, 0);
  }

 private:
  struct Budget {
    Clock::time_point began{};
    std::uint32_t lines = 0;
    std::uint64_t left_out = 0;
  };
  cache::Mutex mutex_;
  std::array<Budget, 64> budgets_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::server
