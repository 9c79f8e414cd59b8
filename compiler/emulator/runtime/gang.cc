// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/gang.h"

#include <algorithm>
#include <map>
#include <utility>

#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

thread_local Gang* current = nullptr;

}  // namespace

Gang::Gang(const Grid& grid, Stacks& stacks, std::span<const BlockMemory> memory) : grid_(grid), stacks_(stacks) {
  for (const BlockMemory& m : memory) blocks_.push_back(std::make_unique<Block>(*this, uint32_t(blocks_.size()), m.shared, m.shadow));
}

Gang::~Gang() = default;

Gang& Gang::Current() { return *current; }
Block& Block::Current() { return *current->running().block; }

bool Gang::Run(const Turns::Turn& turn) {
  turn_ = turn;
  is_its_turn_ = false;
  Prepare();
  running_ = nullptr;
  if (*grid_.time_over) {
    ReportTime(blocks_[0]->threads()[0]);
    return false;
  }
  current = this;
  running_ = Next();
  kiln_emu_switch(&scheduler_, running_->stack);
  if (!given_up_ && ended_ < thread_count()) ReportStuck();
  if (!given_up_) ReportLost();
  current = nullptr;
  return !given_up_;
}

void Gang::Prepare() {
  random_ = (grid_.seed + 1) * 0x9e3779b97f4a7c15 ^ (number() + 1) * 0xbf58476d1ce4e5b9;
  given_up_ = false;
  ended_ = 0;
  cluster_barriers_.clear();
  for (uint32_t first = 0; first < size(); first += grid_.cluster_blocks()) {
    cluster_barriers_.push_back({Meeting::kClusterBarrier, first, grid_.cluster_blocks(), 0, {}});
  }
  grid_barrier_ = {Meeting::kGridBarrier, 0, size(), 0, {}};
  if (!grid_.follows) flags_.clear(), released_.clear();
  ahead_.clear();
  ready_.clear();
  agents_.clear();
  in_flight_.clear();
  for (const auto& block : blocks_) {
    block->Prepare(number());
    for (Thread& thread : block->threads()) {
      thread.agent = block->rank() * grid_.threads + thread.index;
      thread.stack = stacks_.Prepare(thread.agent, &Gang::Enter, &thread);
      ready_.push_back(&thread);
    }
  }
}

void Gang::Enter(void* argument) {
  Gang& gang = *current;
  gang.grid_.kernel(gang.grid_.args);
  auto& thread = *static_cast<Thread*>(argument);
  EndStores(*thread.block);
  EndProducts(*thread.block);
  gang.End();
}

void Gang::End() {
  running_->done = true;
  running_->block->CountEnd();
  ++ended_;
  if (BarrierState& barrier = ClusterBarrierOf(*running_); barrier.arrived > 0) Complete(barrier);
  Suspend();
}

void Gang::AwaitTurn() {
  if (is_its_turn_) return;
  grid_.turns->Await(turn());
  is_its_turn_ = true;
}

// splitmix64
uint32_t Gang::Random(uint32_t below) {
  uint64_t z = random_ += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return uint32_t(((z ^ z >> 31) >> 32) * below >> 32);
}

// Any thread that can run; null: none.
Thread* Gang::Next() {
  while (ready_.empty() && !in_flight_.empty() && !given_up_ && ended_ < thread_count()) LandOne();
  if (ready_.empty() || given_up_) return nullptr;
  std::swap(ready_[Random(uint32_t(ready_.size()))], ready_.back());
  Thread* next = ready_.back();
  ready_.pop_back();
  return next;
}

void Gang::Suspend() {
  Thread* self = running_;
  Thread* next = Next();
  if (next == self) return;  // a copy that it waits for came meanwhile
  if (next != nullptr) running_ = next;
  kiln_emu_switch(&self->stack, next == nullptr ? scheduler_ : next->stack);
}

void Gang::Park() {
  Thread& self = *running_;
  if (self.woken) {
    self.woken = false;
    return;
  }
  self.parked = true;
  Suspend();
}

void Gang::Wake(Thread& thread) {
  if (thread.parked) {
    thread.parked = false;
    Ready(thread);
  } else {
    thread.woken = true;
  }
}

void Gang::GiveUp() {
  grid_.recorder->Stop(turn());
  Abandon();
}

void Gang::Abandon() {
  given_up_ = true;
  Suspend();
  __builtin_unreachable();
}

void Gang::EndByTime(uint32_t location) {
  running_->location = location;
  ReportTime(*running_);
  Abandon();
}

void Gang::Barrier(Meeting kind, uint32_t location) {
  Thread& self = *running_;
  BarrierState& barrier = kind == Meeting::kGridBarrier ? grid_barrier_ : ClusterBarrierOf(self);
  self.waits_for = kind;
  self.location = location;
  if (has_clocks()) barrier.sync.Release(self.agent, self.view);
  ++barrier.arrived;
  Complete(barrier);
  while (self.waits_for == kind) Park();
}

void Gang::RaiseFlag(uint32_t* flag, uint32_t location) {
  Thread& self = *running_;
  self.location = location;
  FlagState& state = flags_[flag];
  if (*flag != 0) self.block->Fault(FindingKind::kOperands, location, "the flag is up already: nobody has taken what it stood for");
  if (has_clocks()) state.sync.Release(self.agent, self.view);
  state.gang = number();
  state.raiser = self.block->rank();
  *flag = 1;
  for (Thread* waiting : std::exchange(state.waiting, {})) Wake(*waiting);
}

// Blocks start in the order of their numbers, and a device need not have room for all of them.
void Gang::TakeFlag(uint32_t* flag, uint32_t location) {
  Thread& self = *running_;
  self.waits_for = Meeting::kFlag;
  self.location = location;
  if (grid_.follows && *flag == 0)
    self.block->Fault(FindingKind::kDeadlock, location, "it waits for a flag that no block before it raised, and later ones may not start");
  while (*flag == 0) {
    flags_[flag].waiting.push_back(&self);
    Park();
  }
  self.waits_for = Meeting::kNone;
  FlagState& state = flags_[flag];
  if (grid_.follows) {
    ahead_.insert(state.gang + 1);
  } else if (state.raiser > self.block->rank()) {
    self.block->Fault(FindingKind::kDeadlock, location,
                      "it waits for block " + blocks_[state.raiser]->IndexName() + ", which may not start before this one ends");
  }
  if (has_clocks() && !grid_.follows) joiner_.Acquire(self.view, state.sync.Take());
  state.sync = {};
  *flag = 0;
}

// A thread that waits in a loop of its own is always ready, so what is under way lands now and then meanwhile.
void Gang::GiveWay(uint32_t location) {
  running_->location = location;
  if (!in_flight_.empty() && Random(8) == 0) LandOne();
  Ready(*running_);
  Suspend();
}

// A store leaves only what it releases itself; a change also leaves what others released before (PTX ISA, "Release and Acquire Patterns").
void Gang::Meet(const std::byte* data, const AtomicCall& call, uint32_t location) {
  GiveWay(location);
  if (call.order == ir::MemoryOrder::kRelaxed && !call.IsStore()) return;
  Thread& self = *running_;
  Released& released = released_[data];
  if (call.IsStore()) released = {};
  if (call.Acquires() && grid_.follows) ahead_.insert(released.gangs.begin(), released.gangs.end());
  if (call.Acquires() && has_clocks() && !grid_.follows) joiner_.Acquire(self.view, released.sync.Take());
  if (!call.Releases()) return;
  released.gangs.insert(number() + 1);
  if (has_clocks()) released.sync.Release(self.agent, self.view);
}

// A cluster's "waits for all the non-exited threads of the cluster" (PTX ISA, barrier.cluster); a grid's for all that there were.
void Gang::Complete(BarrierState& barrier) {
  const auto blocks = std::span(blocks_).subspan(barrier.first, barrier.count);
  uint32_t awaited = barrier.count * grid_.threads;
  for (const auto& block : blocks) awaited -= barrier.kind == Meeting::kClusterBarrier ? block->count_ended() : 0;
  if (barrier.arrived < awaited) return;
  barrier.arrived = 0;
  const Snapshot snapshot = has_clocks() ? barrier.sync.Take() : Snapshot{};
  for (const auto& block : blocks) {
    for (Thread& thread : block->threads()) {
      if (thread.waits_for != barrier.kind) continue;
      thread.waits_for = Meeting::kNone;
      if (has_clocks()) joiner_.Acquire(thread.view, snapshot);
      if (&thread != running_) Wake(thread);
    }
  }
}

uint32_t Gang::NewAgent(AsyncAgent agent) {
  agents_.push_back(agent);
  return thread_count() + uint32_t(agents_.size()) - 1;
}

std::string Gang::NameOf(uint64_t gang, uint32_t agent) const {
  std::string of;
  if (gang != number() || size() > 1) {
    const uint32_t rank = IsAsync(agent) ? 0 : agent / grid_.threads;
    of = " of block " + (gang == number() ? blocks_[rank]->IndexName() : grid_.BlockName(gang, rank));
  }
  if (!IsAsync(agent)) return "thread " + std::to_string(agent % grid_.threads) + of;
  if (gang != number()) return "an asynchronous copy of another block";
  const AsyncAgent& a = AgentOf(agent);
  of = size() > 1 ? " of block " + blocks_[a.block]->IndexName() : "";
  switch (a.kind) {
    case AsyncAgent::Kind::kTransfers: return "a tensor load (on the mbarrier at byte " + std::to_string(a.detail) + of + ")";
    case AsyncAgent::Kind::kStoreReads:
    case AsyncAgent::Kind::kStoreWrites: return "a tensor store by thread " + std::to_string(a.detail) + of;
    case AsyncAgent::Kind::kProducts: break;
  }
  return "wgmma of threads " + std::to_string(a.detail) + "-" + std::to_string(a.detail + kGroupThreads - 1) + of;
}

void Gang::Launch(std::unique_ptr<TensorTransfer> transfer) {
  if (!lands_late()) return transfer->Land();
  in_flight_.push_back(std::move(transfer));
}

void Gang::LandOne() {
  std::swap(in_flight_[Random(uint32_t(in_flight_.size()))], in_flight_.back());
  const std::unique_ptr<TensorTransfer> transfer = std::move(in_flight_.back());
  in_flight_.pop_back();
  transfer->Land();
}

// Copies that nobody waited for: the blocks they write to have ended.
void Gang::ReportLost() {
  for (const auto& transfer : in_flight_) {
    const Block& to = *transfer->to.front().first;
    NamedPlace at = SharedPlace(to, transfer->offset, to);
    transfer->starter->block->Report(FindingKind::kAsyncPending, {transfer->starter->index, transfer->location},
                                     "the block ended before a tensor load to " + at.text + " had come; nobody waited for it", std::move(at.place));
  }
}

// Where every thread is; blocks whose threads are at the same places together.
std::string Gang::Positions() {
  std::map<std::string, std::vector<const Block*>> blocks;
  for (const auto& block : blocks_) blocks[block->Positions()].push_back(block.get());
  if (size() == 1) return blocks.begin()->first;
  std::vector<std::pair<const Block*, std::string>> lines;
  for (const auto& [text, members] : blocks) {
    std::string names = (members.size() > 1 ? "blocks " : "block ") + members.front()->IndexName();
    if (members.size() > 1) names += " and " + std::to_string(members.size() - 1) + " more, the last " + members.back()->IndexName();
    lines.emplace_back(members.front(), names + ": " + text);
  }
  std::ranges::sort(lines, {}, [](const auto& line) { return line.first->rank(); });
  std::string all;
  for (const auto& [first, text] : lines) all += (all.empty() ? "" : "; ") + text;
  return all;
}

void Gang::ReportTime(const Thread& at) {
  at.block->Report(FindingKind::kTimeout, {at.index, at.location}, Positions());
  grid_.recorder->CutShort();
}

// About the first thread that waits, and the first that waits elsewhere or, where none does, who last did something to the mbarrier.
void Gang::ReportStuck() {
  const Thread *waiting = nullptr, *elsewhere = nullptr;
  for (const auto& block : blocks_) {
    for (const Thread& thread : block->threads()) {
      if (thread.done) continue;
      if (waiting == nullptr) waiting = &thread;
      if (elsewhere == nullptr && thread.location != waiting->location) elsewhere = &thread;
    }
  }
  Block& block = *waiting->block;
  Place place = block.PlaceAwaited(*waiting);
  if (place.elements.empty() && elsewhere != nullptr) place = elsewhere->block->PlaceAwaited(*elsewhere);
  const uint32_t other = elsewhere != nullptr ? elsewhere->location : block.LastUseOfAwaited(*waiting);
  block.Report(ended_ > 0 ? FindingKind::kDivergence : FindingKind::kDeadlock, {waiting->index, waiting->location, other},
               std::string(ended_ > 0 ? "threads wait for others that have ended" : "no thread can go on") + ": " + Positions(), std::move(place));
  given_up_ = true;
  grid_.recorder->Stop(turn());
}

}  // namespace kiln::emulator
