// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "server/queue/executor.h"

namespace kiln::server {

// Whether the executor still runs its tasks: the sign that kilnd is alive. Every request that needs a thread passes through it, and each
// task takes milliseconds. If no thread is free for `patience`, none will be. The heavy executor has no heartbeat: its tasks may wait for
// memory, and no small request waits for them.
class Heartbeat {
 public:
  Heartbeat(Executor& executor, const cache::Clock& clock, std::chrono::steady_clock::duration patience = std::chrono::seconds(30))
      : executor_(executor), clock_(clock), patience_(patience), state_(std::make_shared<State>()) {}

  // Posts a beat unless one is under way, ahead of all that waits, because a full queue alone is no bad sign. False if the last beat has
  // been under way for too long.
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
