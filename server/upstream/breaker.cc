// SPDX-License-Identifier: Apache-2.0
#include "server/upstream/breaker.h"

#include <algorithm>

namespace kiln::server {

bool Breaker::in_use() const {
  cache::MutexLock lock(mutex_);
  return in_use_;
}

// After the first failure there is none: it may have been a moment's.
std::chrono::milliseconds Breaker::Pause() const {
  if (failures_ <= 1) return std::chrono::milliseconds(0);
  return std::min(kLongestPause, kFirstPause * (1 << std::min<std::size_t>(failures_ - 2, 10)));
}

bool Breaker::Fail(cache::SteadyTime began) {
  cache::MutexLock lock(mutex_);
  if (!in_use_ || began < revived_) return false;
  const cache::SteadyTime now = clock_.SteadyNow();
  in_use_ = false;
  failures_ = now - revived_ < kRelapse ? failures_ + 1 : 1;
  probe_ = now + Pause();
  return true;
}

void Breaker::NoteProbe(bool answered) {
  cache::MutexLock lock(mutex_);
  const cache::SteadyTime now = clock_.SteadyNow();
  in_use_ = answered;
  if (answered) {
    revived_ = now;
    return;
  }
  failures_ = std::max<std::size_t>(failures_ + 1, 2);
  probe_ = now + Pause();
}

std::optional<cache::SteadyTime> Breaker::probe_due() const {
  cache::MutexLock lock(mutex_);
  if (in_use_) return std::nullopt;
  return probe_;
}

}  // namespace kiln::server
