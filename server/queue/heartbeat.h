// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "server/queue/executor.h"

namespace kiln::server {

// Whether the executor still runs what it is given: the sign that kilnd is alive. Every request that needs a thread passes through it, and
// each of its tasks takes milliseconds; when none of its threads is free for `patience`, none comes back. The heavy executor has no beat:
// what stands there may well wait for memory, and nobody else's small requests with it.
class Heartbeat {
 public:
  Heartbeat(Executor& executor, const cache::Clock& clock, std::chrono::steady_clock::duration patience = std::chrono::seconds(30))
      : executor_(executor), clock_(clock), patience_(patience), state_(std::make_shared<State>()) {}

  // Sends a beat where none is under way, before all that waits: a full queue alone is no bad sign. False when the last has been
  // under way for too long.
  bool Alive() {
    const auto now = clock_.SteadyNow();
    {
      cache::MutexLock lock(state_->mutex);
      if (state_->since) return now - *state_->since < patience_;
      state_->since = now;
    }
    executor_.PostFirst([state = state_] {
      cache::MutexLock lock(state->mutex);
      state->since.reset();
    });
    return true;
  }

 private:
  struct State {
    cache::Mutex mutex;
    std::optional<cache::SteadyTime> since KILN_GUARDED_BY(mutex);  // of the beat under way
  };

  Executor& executor_;
  const cache::Clock& clock_;
  const std::chrono::steady_clock::duration patience_;
  const std::shared_ptr<State> state_;
};

}  // namespace kiln::server
