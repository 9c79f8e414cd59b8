// SPDX-License-Identifier: Apache-2.0
//
// In which order the gangs of a launch start, drawn from the seed, and a gate for what must happen in that order though they run in
// parallel: atomic sums of floating-point numbers, which depend on it. Gangs start in the order of their turns, so the one whose turn
// it is never waits and the others get on in the end.
//
// Concurrency: shared by the threads of the host that run gangs; one mutex guards all but the order, which does not change.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>

namespace kiln::emulator {

class Turns {
 public:
  struct Turn {
    uint64_t number = 0, gang = 0;
  };

  // At least one gang. Under seed 0 they start as they are numbered.
  Turns(uint64_t seed, uint64_t gangs) : gangs_(gangs), first_(seed % gangs), step_((seed * 0x9e3779b97f4a7c15 >> 33) % gangs) {
    while (std::gcd(step_, gangs_) != 1) ++step_;  // then the multiples of it reach every gang
  }

  // Absent: all have started.
  std::optional<Turn> Start() {
    const std::lock_guard lock(mutex_);
    if (started_ == gangs_) return std::nullopt;
    const uint64_t number = started_++;
    return Turn{number, uint64_t((first_ + static_cast<unsigned __int128>(number) * step_) % gangs_)};
  }
  void End(uint64_t number) {
    const std::lock_guard lock(mutex_);
    ended_.insert(number);
    while (ended_.erase(current_) > 0) ++current_;
    changed_.notify_all();
  }
  // Until all before it have ended.
  void Await(uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return current_ == number; });
  }

 private:
  const uint64_t gangs_, first_;
  uint64_t step_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t started_ = 0;
  uint64_t current_ = 0;      // the first that has not ended
  std::set<uint64_t> ended_;  // after it
};

}  // namespace kiln::emulator
