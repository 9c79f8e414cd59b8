// SPDX-License-Identifier: Apache-2.0
//
// Whether a server is in use, or left alone until it has answered a probe.
//
// Whoever owns one probes it when that is due, on a thread that no request waits for. The distance of probes doubles while they fail, and while the
// server fails again soon after one. How many failures in a row it takes is its owner's to say: one, where nobody is to wait for it twice; more,
// where a late answer is nothing special. All members may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>

#include "cache/clock.h"
#include "cache/mutex.h"

namespace kiln::cache {

class Breaker {
 public:
  // A server that is not usable yet is probed first, and at once. `patience`: how many failures in a row it takes until it is left alone.
  explicit Breaker(bool usable, int patience = 1) : patience_(patience), usable_(usable) {}

  bool usable() const { return usable_; }

  // It answered a request.
  void NoteAnswer(SteadyTime now);

  // It failed whoever began to ask at that time. Whether it is left alone from now on: not where it was before, has answered a probe since then, or
  // has not failed so often in a row.
  bool Fail(SteadyTime began, SteadyTime now);

  // It cannot be asked at all: it is left alone from now on. Whether it was in use until then.
  bool LeaveAlone(SteadyTime now);

  // Left alone where nothing was heard of it since then: so that whoever has just waited for another server in vain does not wait for it, too.
  void Doubt(SteadyTime since);

  // When it is to be probed; nothing while it is in use.
  std::optional<SteadyTime> probe_due() const;
  // In a row, of requests and of probes.
  std::size_t failures() const;

  // What a probe came to. One that was answered brings the server back into use.
  void NoteProbe(bool answered, SteadyTime now);

 private:
  static constexpr std::chrono::milliseconds kFirstPause{50}, kLongestPause{3'000};
  static constexpr std::chrono::seconds kRelapse{10};  // a failure this soon after a probe adds to those before

  static std::chrono::milliseconds PauseAfter(std::size_t doublings);
  bool Open(SteadyTime now) KILN_REQUIRES(mutex_);

  const int patience_;
  std::atomic<bool> usable_;
  mutable Mutex mutex_;
  SteadyTime heard_ KILN_GUARDED_BY(mutex_){};    // of it, last
  SteadyTime revived_ KILN_GUARDED_BY(mutex_){};  // by a probe, last
  SteadyTime probe_ KILN_GUARDED_BY(mutex_){};    // the next
  std::size_t failures_ KILN_GUARDED_BY(mutex_) = 0;
  int in_a_row_ KILN_GUARDED_BY(mutex_) = 0;  // of requests, since it answered
};

}  // namespace kiln::cache
