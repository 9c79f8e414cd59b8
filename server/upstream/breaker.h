// SPDX-License-Identifier: Apache-2.0
//
// Whether a kilnd that is asked for results is left alone. One that fails once, by an error or by silence, is left alone until it has answered
// a probe, so that nobody's request pays for it. The distance of the probes doubles while they fail, and while it fails again soon after one.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "cache/clock.h"
#include "cache/mutex.h"

namespace kiln::server {

// All members may be called from any thread. Left alone at first, with a probe due at once.
class Breaker {
 public:
  explicit Breaker(const cache::Clock& clock) : clock_(clock) {}

  bool in_use() const;

  // It failed somebody who began to ask at that time. True: it is left alone from now on. False: it was before, or has answered a probe since.
  bool Fail(cache::SteadyTime began);

  // What the last probe has shown.
  void NoteProbe(bool answered);

  // When the next one is due; nothing while it is in use.
  std::optional<cache::SteadyTime> probe_due() const;

 private:
  static constexpr std::chrono::milliseconds kFirstPause{50}, kLongestPause{3'000};
  static constexpr std::chrono::seconds kRelapse{10};  // a failure this soon after a probe adds to those before

  std::chrono::milliseconds Pause() const KILN_REQUIRES(mutex_);

  const cache::Clock& clock_;
  mutable cache::Mutex mutex_;
  bool in_use_ KILN_GUARDED_BY(mutex_) = false;
  std::size_t failures_ KILN_GUARDED_BY(mutex_) = 0;
  cache::SteadyTime revived_ KILN_GUARDED_BY(mutex_){};  // by a probe, last
  cache::SteadyTime probe_ KILN_GUARDED_BY(mutex_){};    // the next
};

}  // namespace kiln::server
