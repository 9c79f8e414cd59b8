// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/block.h"

#include <algorithm>
#include <cstring>

#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {

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
    case Meeting::kElect: return "the election of a lane";
    case Meeting::kNamedBarrier: return "barrier ";
    case Meeting::kNamedArrive: return "an arrival at a barrier";
    case Meeting::kSetRegisters: return "setmaxnreg";
    case Meeting::kRegisters: return "registers";
    case Meeting::kPhase: return "parity ";
    case Meeting::kClusterBarrier: return "the barrier of the cluster";
    case Meeting::kGridBarrier: return "the barrier of the grid";
    case Meeting::kFlag: return "a flag of another block";
    case Meeting::kVote: return "a vote";
    case Meeting::kReduce: return "redux";
    case Meeting::kLanesBarrier: return "a barrier of lanes";
  }
  return "";
}

Block::Block(Gang& gang, uint32_t rank, std::byte* shared, SharedShadow* shadow)
    : gang_(gang),
      grid_(gang.grid()),
      rank_(rank),
      shared_(shared),
      shadow_(shadow),
      mbarriers_(*this),
      claims_(*this, grid_.threads),
      threads_(grid_.threads) {
  for (uint32_t first = 0; first < grid_.threads; first += grid_.warp_size) {
    warps_.push_back({.first = first, .count = std::min(grid_.warp_size, grid_.threads - first)});
  }
  for (uint32_t first = 0; first < grid_.threads; first += kGroupThreads) {
    groups_.push_back({.first = first, .count = std::min(kGroupThreads, grid_.threads - first)});
  }
}

Thread& Block::thread() { return gang_.running(); }
Block& Block::Peer(uint32_t cluster_rank) { return gang_.block(rank_ - this->cluster_rank() + cluster_rank); }

void Block::Prepare(uint64_t gang) {
  index_ = grid_.BlockIndex(gang, rank_);
  epoch_ = global_epoch_ = 1;
  at_barrier_ = ended_ = free_registers_ = 0;
  barrier_ = {};
  named_ = {};
  lanes_.clear();
  wants_registers_.clear();
  mbarriers_.Clear();
  claims_.Clear();
  for (Warp& warp : warps_) warp.arrived = 0;
  for (Warp& group : groups_) {
    group.arrived = group.registers = 0;
    group.products = {};
  }
  for (uint32_t i = 0; i < grid_.threads; ++i) {
    Thread& thread = threads_[i];
    thread.block = this;
    thread.index = i;
    thread.warp = &warps_[i / grid_.warp_size];
    thread.done = thread.parked = thread.woken = false;
    thread.waits_for = Meeting::kNone;
    thread.location = 0;
    thread.view = {};
    thread.open.clear();
    thread.groups.clear();
    thread.accumulators.clear();
    thread.in_use.clear();
    thread.stores = {};
  }
  // NaN in every type: what a kernel computes from it shows.
  if (grid_.shared_bytes > 0) std::memset(shared_, 0xff, grid_.shared_bytes);
  if (shadow_ != nullptr) shadow_->Enter();
}

Who Block::WhoOf(uint32_t thread, uint32_t location, Order& order, bool global) {
  Thread& t = threads_[thread];
  Who who{.block = gang_.number() + 1, .time = global ? global_epoch_ : epoch_, .agent = t.agent, .location = location, .ahead = &gang_.ahead()};
  if (!grid_.clocks) return who;
  who.time = t.view.time;
  order = {.views = {&t.view, 1}, .self = t.agent, .threads = gang_.thread_count()};
  who.order = &order;
  return who;
}

bool Block::Arrive(Warp& warp, Meeting meeting, uint32_t site, uint32_t location, void* operands) {
  Thread& self = thread();
  if (warp.arrived == 0) warp.came_first = &self;
  if (warp.arrived > 0 && (warp.meeting != meeting || warp.site != site)) {
    const Thread& first = *warp.came_first;
    Fault(FindingKind::kDivergence, {self.index, location, first.location},
          ThreadName(self.index) + " came to " + std::string(Name(meeting)) + " and thread " + std::to_string(first.index) + ", a lane of the same " +
              (warp.count > grid_.warp_size ? "group of warps" : "warp") + ", to another place, " + std::string(Name(warp.meeting)));
  }
  warp.meeting = meeting;
  warp.site = site;
  self.waits_for = meeting;
  self.site = site;
  self.location = location;
  self.operands = operands;
  if (++warp.arrived == warp.count) return true;
  gang_.Suspend();
  return false;
}

void Block::Leave(Warp& warp) {
  warp.arrived = 0;
  for (uint32_t i = warp.first; i < warp.first + warp.count; ++i) {
    if (threads_[i].waits_for == warp.meeting) threads_[i].waits_for = Meeting::kNone;
    if (&threads_[i] != &thread()) gang_.Ready(threads_[i]);
  }
}

void Block::CountEnd() {
  if (++ended_ == grid_.threads) claims_.Finish();
}

void Block::Barrier(bool shared_only, uint32_t site, uint32_t location) {
  Thread& self = thread();
  if (at_barrier_ == 0) first_at_barrier_ = &self;
  if (at_barrier_ > 0 && barrier_site_ != site) {
    Fault(FindingKind::kDivergence, {self.index, location, first_at_barrier_->location},
          ThreadName(self.index) + " came to a barrier while thread " + std::to_string(first_at_barrier_->index) +
              " waits at another: different barriers");
  }
  barrier_site_ = site;
  self.waits_for = Meeting::kBarrier;
  self.site = site;
  self.location = location;
  if (grid_.clocks) barrier_.Release(self.agent, self.view);
  if (++at_barrier_ < grid_.threads) return gang_.Suspend();
  at_barrier_ = 0;
  ++epoch_;
  if (!shared_only) ++global_epoch_;
  const Snapshot snapshot = grid_.clocks ? barrier_.Take() : Snapshot{};
  for (Thread& thread : threads_) {
    thread.waits_for = Meeting::kNone;
    if (grid_.clocks) {
      thread.view.seen = snapshot.seen;
      thread.view.fenced = snapshot.fenced;
    }
    if (&thread != &self) gang_.Ready(thread);
  }
}

void Block::Report(FindingKind kind, const About& about, std::string message, Place place) {
  if (Wants(kind, about)) Add(kind, about, std::move(message), std::move(place));
}

bool Block::Wants(FindingKind kind, const About& about) { return grid_.recorder->Wants(gang_.turn(), kind, about.location, about.other_location); }

void Block::Add(FindingKind kind, const About& about, std::string message, Place place) {
  grid_.recorder->Add(gang_.turn(), {kind, std::move(message), about.location, about.other_location, index_, about.thread, std::move(place)});
}

void Block::Fault(FindingKind kind, const About& about, std::string message, Place place) {
  Report(kind, about, std::move(message), std::move(place));
  gang_.GiveUp();
}

void Block::Fault(FindingKind kind, uint32_t location, std::string message, Place place) {
  Fault(kind, {thread().index, location}, std::move(message), std::move(place));
}

std::string Block::IndexName() const { return Grid::IndexName(index_); }
std::string Block::ThreadName(uint32_t thread) const { return "thread " + std::to_string(thread) + " of block " + IndexName(); }

std::string Block::DetailOf(const Thread& thread) {
  if (thread.waits_for == Meeting::kNamedBarrier) {
    const NamedBarrierState& named = named_[thread.detail];
    return std::to_string(thread.detail) + " (" + std::to_string(named.arrived) + " of " + std::to_string(named.expected) + " threads came)";
  }
  if (thread.waits_for != Meeting::kPhase) return "";
  const Mbarrier* mbarrier = mbarriers_.Find(uint32_t(thread.detail >> 1));
  return std::to_string(thread.detail & 1) + " of " + (mbarrier == nullptr ? "an mbarrier" : mbarrier->Describe());
}

Place Block::PlaceAwaited(const Thread& thread) const {
  return thread.waits_for == Meeting::kPhase ? SharedPlace(*this, thread.detail >> 1, *this).place : Place{};
}

uint32_t Block::LastUseOfAwaited(const Thread& thread) const {
  const Mbarrier* mbarrier = thread.waits_for == Meeting::kPhase ? mbarriers_.Find(uint32_t(thread.detail >> 1)) : nullptr;
  return mbarrier == nullptr ? 0 : mbarrier->last_use().location;
}

std::string Block::StateOf(const Thread& thread) {
  if (thread.done) return " ended";
  const std::string place = " (statement " + std::to_string(thread.location) + ")";
  if (thread.waits_for != Meeting::kNone) return " wait for " + std::string(Name(thread.waits_for)) + DetailOf(thread) + place;
  if (gang_.IsRunning(thread)) return " runs" + place;
  return thread.location == 0 ? " have not begun" : " passed" + place;
}

std::string Block::Positions() {
  std::vector<std::pair<std::string, std::string>> groups;  // what they do, and which threads
  for (size_t first = 0, next = 0; first < threads_.size(); first = next) {
    const std::string state = StateOf(threads_[first]);
    for (next = first + 1; next < threads_.size() && StateOf(threads_[next]) == state;) ++next;
    auto group = std::ranges::find(groups, state, &std::pair<std::string, std::string>::first);
    if (group == groups.end()) group = groups.insert(group, {state, ""});
    group->second += (group->second.empty() ? "" : ", ") + std::to_string(first) + (next > first + 1 ? "-" + std::to_string(next - 1) : "");
  }
  std::string text;
  for (const auto& [state, threads] : groups) text += (text.empty() ? "threads " : "; ") + threads + state;
  return text;
}

}  // namespace kiln::emulator
