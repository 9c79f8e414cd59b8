// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/clock.h"

#include <algorithm>

namespace kiln::emulator {
namespace {

void Raise(std::vector<uint32_t>& times, const std::vector<uint32_t>& by) {
  if (times.size() < by.size()) times.resize(by.size());
  for (size_t i = 0; i < by.size(); ++i) times[i] = std::max(times[i], by[i]);
}

bool Within(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  if (a.size() > b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) return false;
  }
  return true;
}

Clock JoinOf(const Clock& a, const Clock& b) {
  if (b.times() == nullptr || a == b) return a;
  if (a.times() == nullptr || Within(*a.times(), *b.times())) return b;
  if (Within(*b.times(), *a.times())) return a;
  std::vector<uint32_t> times = *a.times();
  Raise(times, *b.times());
  return Clock(std::move(times));
}

}  // namespace

Clock Clock::With(uint32_t agent, uint32_t time) const {
  std::vector<uint32_t> times = times_ == nullptr ? std::vector<uint32_t>() : *times_;
  if (times.size() <= agent) times.resize(agent + 1);
  times[agent] = std::max(times[agent], time);
  return Clock(std::move(times));
}

Clock Joiner::Memo::Join(const Clock& x, const Clock& y) {
  if (a == x && b == y) return result;
  result = JoinOf(x, y);
  a = x;
  b = y;
  return result;
}

void SyncPoint::Sum::Merge(const Clock& clock) {
  if (clock.times() == nullptr || clock == last) return;
  Raise(times, *clock.times());
  last = clock;
  changed = true;
}

void SyncPoint::Sum::Set(uint32_t agent, uint32_t time) {
  if (times.size() <= agent) times.resize(agent + 1);
  times[agent] = std::max(times[agent], time);
  changed = true;
}

Clock SyncPoint::Sum::Take() {
  if (changed) taken = Clock(times);
  changed = false;
  return taken;
}

void SyncPoint::Release(uint32_t agent, View& view) {
  seen_.Merge(view.seen);
  seen_.Set(agent, view.time++);
  fenced_.Merge(view.fenced);
}

void SyncPoint::Advance(uint32_t agent, uint32_t time) { seen_.Set(agent, time); }

Snapshot SyncPoint::Take() { return {seen_.Take(), fenced_.Take()}; }

}  // namespace kiln::emulator
