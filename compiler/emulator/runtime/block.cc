// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/block.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "compiler/emulator/runtime/shadow.h"

namespace kiln::emulator {
namespace {

thread_local Block* current = nullptr;

}  // namespace

std::string_view Name(Meeting meeting) {
  switch (meeting) {
    case Meeting::kNone: return "nothing";
    case Meeting::kBarrier: return "a barrier";
    case Meeting::kShuffle: return "a shuffle";
    case Meeting::kUniform: return "a broadcast";
    case Meeting::kLoadMatrix: return "ldmatrix";
    case Meeting::kStoreMatrix: return "stmatrix";
    case Meeting::kMatrix: return "a matrix instruction";
    case Meeting::kWgmma: return "wgmma";
    case Meeting::kWgmmaWait: return "the end of wgmma";
  }
  return "";
}

Block::Block(const Grid& grid, Stacks& stacks, std::byte* shared, SharedShadow* shadow)
    : grid_(grid), stacks_(stacks), shared_(shared), shadow_(shadow), threads_(grid.threads) {
  for (uint32_t first = 0; first < grid.threads; first += grid.warp_size) {
    warps_.push_back({.first = first, .count = std::min(grid.warp_size, grid.threads - first)});
  }
  for (uint32_t first = 0; first < grid.threads; first += kGroupThreads) {
    groups_.push_back({.first = first, .count = std::min(kGroupThreads, grid.threads - first)});
  }
}

Block& Block::Current() { return *current; }

bool Block::Run(uint64_t linear) {
  linear_ = linear;
  index_ = {uint32_t(linear % grid_.size[0]), uint32_t(linear / grid_.size[0] % grid_.size[1]),
            uint32_t(linear / grid_.size[0] / grid_.size[1])};
  Prepare();
  current = this;
  Schedule();
  current = nullptr;
  return !given_up_;
}

void Block::Prepare() {
  epoch_ = 1;
  random_ = (grid_.seed + 1) * 0x9e3779b97f4a7c15 ^ (linear_ + 1) * 0xbf58476d1ce4e5b9;
  given_up_ = false;
  at_barrier_ = 0;
  ready_.clear();
  for (Warp& warp : warps_) warp.arrived = 0;
  for (Warp& group : groups_) {
    group.arrived = 0;
    group.started.clear();
  }
  for (uint32_t i = 0; i < grid_.threads; ++i) {
    Thread& thread = threads_[i];
    thread.index = i;
    thread.warp = &warps_[i / grid_.warp_size];
    thread.done = false;
    thread.waits_for = Meeting::kNone;
    thread.open.clear();
    thread.groups.clear();
    thread.accumulators.clear();
    thread.stack = stacks_.Prepare(i, &Block::Enter, &thread);
    ready_.push_back(i);
  }
  // NaN in every type: what a kernel computes from it shows.
  if (grid_.shared_bytes > 0) std::memset(shared_, 0xff, grid_.shared_bytes);
  if (shadow_ != nullptr) shadow_->Enter(linear_);
}

void Block::Enter(void* argument) {
  Block& block = *current;
  block.grid_.kernel(block.grid_.args);
  static_cast<Thread*>(argument)->done = true;
  block.Suspend();
}

// splitmix64
uint32_t Block::Random(uint32_t below) {
  uint64_t z = random_ += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return uint32_t(((z ^ z >> 31) >> 32) * below >> 32);
}

// Any thread that can run; null: none.
Thread* Block::Next() {
  if (ready_.empty() || given_up_) return nullptr;
  std::swap(ready_[Random(uint32_t(ready_.size()))], ready_.back());
  Thread* next = &threads_[ready_.back()];
  ready_.pop_back();
  return next;
}

void Block::Schedule() {
  running_ = Next();
  kiln_emu_switch(&scheduler_, running_->stack);
  if (!given_up_ && std::ranges::any_of(threads_, [](const Thread& thread) { return !thread.done; })) ReportStuck();
}

void Block::Suspend() {
  Thread* self = running_;
  Thread* next = Next();
  if (next != nullptr) running_ = next;
  kiln_emu_switch(&self->stack, next == nullptr ? scheduler_ : next->stack);
}

bool Block::Arrive(Warp& warp, Meeting meeting, uint32_t site, uint32_t location, void* operands) {
  Thread& self = *running_;
  if (warp.arrived > 0 && (warp.meeting != meeting || warp.site != site)) {
    Fault(FindingKind::kDivergence, location,
          "lanes of one warp came to " + std::string(Name(warp.meeting)) + " and to another place, " + std::string(Name(meeting)));
  }
  warp.meeting = meeting;
  warp.site = site;
  self.waits_for = meeting;
  self.site = site;
  self.location = location;
  self.operands = operands;
  if (++warp.arrived == warp.count) return true;
  Suspend();
  return false;
}

void Block::Leave(Warp& warp) {
  warp.arrived = 0;
  for (uint32_t i = warp.first; i < warp.first + warp.count; ++i) {
    threads_[i].waits_for = Meeting::kNone;
    if (&threads_[i] != running_) ready_.push_back(i);
  }
}

void Block::Barrier(uint32_t site, uint32_t location) {
  Thread& self = *running_;
  if (at_barrier_ > 0 && barrier_site_ != site) {
    Fault(FindingKind::kDivergence, location, "threads of one block wait at different barriers");
  }
  barrier_site_ = site;
  self.waits_for = Meeting::kBarrier;
  self.site = site;
  self.location = location;
  if (++at_barrier_ < grid_.threads) return Suspend();
  at_barrier_ = 0;
  ++epoch_;
  for (Thread& thread : threads_) {
    thread.waits_for = Meeting::kNone;
    if (&thread != running_) ready_.push_back(thread.index);
  }
}

void Block::Report(FindingKind kind, uint32_t thread, uint32_t location, uint32_t other_location, std::string message) {
  if (!grid_.recorder->Wants(kind, location, other_location)) return;
  grid_.recorder->Add({kind, std::move(message), location, other_location, index_, thread});
}

void Block::Fault(FindingKind kind, uint32_t location, std::string message) {
  Report(kind, running_->index, location, 0, std::move(message));
  given_up_ = true;
  grid_.recorder->Stop();
  Suspend();
  __builtin_unreachable();
}

void Block::ReportStuck() {
  const bool finished = std::ranges::any_of(threads_, &Thread::done);
  const auto waiting = std::ranges::find_if(threads_, [](const Thread& thread) { return !thread.done; });
  Report(finished ? FindingKind::kDivergence : FindingKind::kDeadlock, waiting->index, waiting->location, 0,
         std::string(finished ? "threads wait for others that have ended" : "no thread can go on") + ": " + Positions());
  given_up_ = true;
  grid_.recorder->Stop();
}

// "threads 0-31 wait for a barrier (statement 7); 32-63 ended"
std::string Block::Positions() const {
  std::string text;
  const auto same = [](const Thread& a, const Thread& b) {
    return a.done == b.done && (a.done || (a.waits_for == b.waits_for && a.site == b.site));
  };
  for (size_t first = 0, next = 0; first < threads_.size(); first = next) {
    for (next = first; next < threads_.size() && same(threads_[first], threads_[next]);) ++next;
    const Thread& thread = threads_[first];
    text += (text.empty() ? "threads " : "; ") + std::to_string(first) + (next > first + 1 ? "-" + std::to_string(next - 1) : "");
    text += thread.done ? " ended"
                        : " wait for " + std::string(Name(thread.waits_for)) + " (statement " + std::to_string(thread.location) + ")";
  }
  return text;
}

}  // namespace kiln::emulator
