// SPDX-License-Identifier: Apache-2.0
#include "cache/outside/breaker.h"

#include <algorithm>

namespace kiln::cache {

std::chrono::milliseconds Breaker::PauseAfter(std::size_t doublings) {
  return std::min(kLongestPause, kFirstPause * (1 << std::min<std::size_t>(doublings, 10)));
}

void Breaker::NoteAnswer(SteadyTime now) {
  MutexLock lock(mutex_);
  heard_ = now;
  in_a_row_ = 0;
}

bool Breaker::Fail(SteadyTime began, SteadyTime now) {
  MutexLock lock(mutex_);
  if (began < revived_ || ++in_a_row_ < patience_) return false;
  return Open(now);
}

bool Breaker::LeaveAlone(SteadyTime now) {
  MutexLock lock(mutex_);
  return Open(now);
}

bool Breaker::Open(SteadyTime now) {
  in_a_row_ = 0;
  if (!usable_) return false;
  usable_ = false;
  failures_ = now - revived_ < kRelapse ? failures_ + 1 : 1;
  probe_ = now + (failures_ == 1 ? std::chrono::milliseconds(0) : PauseAfter(failures_ - 1));
  return true;
}

void Breaker::Doubt(SteadyTime since) {
  MutexLock lock(mutex_);
  if (!usable_ || heard_ >= since) return;
  usable_ = false;
  probe_ = SteadyTime();
}

std::optional<SteadyTime> Breaker::probe_due() const {
  MutexLock lock(mutex_);
  if (usable_) return std::nullopt;
  return probe_;
}

std::size_t Breaker::failures() const {
  MutexLock lock(mutex_);
  return failures_;
}

void Breaker::NoteProbe(bool answered, SteadyTime now) {
  MutexLock lock(mutex_);
  if (answered) {
    heard_ = revived_ = now;
    in_a_row_ = 0;
    usable_ = true;
    return;
  }
  probe_ = now + PauseAfter(failures_);
  ++failures_;
}

}  // namespace kiln::cache
