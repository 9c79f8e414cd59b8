// SPDX-License-Identifier: Apache-2.0
//
// Other devices of the same model, which measure for a tuning beside its own. They take part in the first round alone: what is left after it, if
// only one, is measured by the tuning's own device, so that the last word compares no two devices unless the budget ends before. Each begins with a candidate that the own device has
// measured; the ratio of the two times is the helper's scale. One that is not of the same speed leaves.
//
// Threads. Each helper has a thread of its own, which measures what it is given, one after the other, and leaves its device alone as the share of
// the time demands. The others are called by the tuning's thread. `news` is called by the helpers' threads, under no lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "server/tune/bench.h"

namespace kiln::server {

class Helpers {
 public:
  struct Task {
    std::size_t candidate = 0;
    unsigned samples = 0;
    std::chrono::milliseconds limit{0};
  };
  struct Done {
    std::size_t helper = 0;
    Task task;
    Bench::Measured measured;
  };
  struct Options {
    std::size_t helpers = 0;  // the bench's devices from 1 on
    double device_share = 1;
    cache::SteadyTime until{};
  };

  Helpers(Options options, Bench& bench, const cache::Clock& clock, std::function<void()> news);
  ~Helpers();  // waits for what they have begun, which the bench's Stop ends

  bool HasRoom(std::size_t helper) const;
  void Give(std::size_t helper, const Task& task);
  std::vector<Done> Take();                        // what has ended since
  std::vector<Task> Withdraw(std::size_t helper);  // what it has not begun

 private:
  struct Helper {
    std::deque<Task> tasks;
    bool measures = false;
    std::jthread thread;
  };
  void Work(std::size_t which);
  bool Next(std::size_t which, Task& task);
  void Rest(std::chrono::microseconds took);

  const Options options_;
  Bench& bench_;
  const cache::Clock& clock_;
  const std::function<void()> news_;
  mutable cache::Mutex mutex_;
  cache::CondVar changed_;
  std::vector<std::unique_ptr<Helper>> helpers_ KILN_GUARDED_BY(mutex_);
  std::vector<Done> done_ KILN_GUARDED_BY(mutex_);
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
