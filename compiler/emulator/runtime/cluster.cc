// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/cluster.h"

#include <algorithm>
#include <cstring>

namespace kiln::emulator {
namespace {

thread_local Cluster* current = nullptr;

}  // namespace

Cluster::Cluster(const Grid& grid, Stacks& stacks, std::span<const BlockMemory> memory) : grid_(grid), stacks_(stacks) {
  for (const BlockMemory& m : memory) blocks_.push_back(std::make_unique<Block>(*this, uint32_t(blocks_.size()), m.shared, m.shadow));
}

Cluster::~Cluster() = default;

Cluster& Cluster::Current() { return *current; }
Block& Block::Current() { return *current->running().block; }

bool Cluster::Run(uint64_t linear) {
  number_ = linear;
  Prepare();
  current = this;
  running_ = Next();
  kiln_emu_switch(&scheduler_, running_->stack);
  if (!given_up_ && ended_ < thread_count()) ReportStuck();
  if (!given_up_) ReportLost();
  current = nullptr;
  return !given_up_;
}

void Cluster::Prepare() {
  random_ = (grid_.seed + 1) * 0x9e3779b97f4a7c15 ^ (number_ + 1) * 0xbf58476d1ce4e5b9;
  given_up_ = false;
  at_barrier_ = ended_ = 0;
  barrier_ = {};
  ready_.clear();
  agents_.clear();
  in_flight_.clear();
  for (const auto& block : blocks_) {
    block->Prepare(number_);
    for (Thread& thread : block->threads()) {
      thread.agent = block->rank() * grid_.threads + thread.index;
      thread.stack = stacks_.Prepare(thread.agent, &Cluster::Enter, &thread);
      ready_.push_back(&thread);
    }
  }
}

void Cluster::Enter(void* argument) {
  Cluster& cluster = *current;
  cluster.grid_.kernel(cluster.grid_.args);
  auto& thread = *static_cast<Thread*>(argument);
  EndStores(*thread.block);
  EndProducts(*thread.block);
  cluster.End();
}

void Cluster::End() {
  running_->done = true;
  running_->block->CountEnd();
  ++ended_;
  if (at_barrier_ > 0) CompleteBarrier();
  Suspend();
}

// splitmix64
uint32_t Cluster::Random(uint32_t below) {
  uint64_t z = random_ += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return uint32_t(((z ^ z >> 31) >> 32) * below >> 32);
}

// Any thread that can run; null: none.
Thread* Cluster::Next() {
  while (ready_.empty() && !in_flight_.empty() && !given_up_ && ended_ < thread_count()) LandOne();
  if (ready_.empty() || given_up_) return nullptr;
  std::swap(ready_[Random(uint32_t(ready_.size()))], ready_.back());
  Thread* next = ready_.back();
  ready_.pop_back();
  return next;
}

void Cluster::Suspend() {
  Thread* self = running_;
  Thread* next = Next();
  if (next == self) return;  // a copy that it waits for came meanwhile
  if (next != nullptr) running_ = next;
  kiln_emu_switch(&self->stack, next == nullptr ? scheduler_ : next->stack);
}

void Cluster::Park() {
  Thread& self = *running_;
  if (self.woken) {
    self.woken = false;
    return;
  }
  self.parked = true;
  Suspend();
}

void Cluster::Wake(Thread& thread) {
  if (thread.parked) {
    thread.parked = false;
    Ready(thread);
  } else {
    thread.woken = true;
  }
}

void Cluster::GiveUp() {
  given_up_ = true;
  grid_.recorder->Stop();
  Suspend();
  __builtin_unreachable();
}

void Cluster::Barrier(uint32_t location) {
  Thread& self = *running_;
  self.waits_for = Meeting::kClusterBarrier;
  self.location = location;
  if (has_clocks()) barrier_.Release(self.agent, self.view);
  ++at_barrier_;
  CompleteBarrier();
  while (self.waits_for == Meeting::kClusterBarrier) Park();
}

// "waits for all the non-exited threads of the cluster": PTX ISA, barrier.cluster.
void Cluster::CompleteBarrier() {
  if (at_barrier_ + ended_ < thread_count()) return;
  at_barrier_ = 0;
  const Snapshot snapshot = has_clocks() ? barrier_.Take() : Snapshot{};
  for (const auto& block : blocks_) {
    for (Thread& thread : block->threads()) {
      if (thread.waits_for != Meeting::kClusterBarrier) continue;
      thread.waits_for = Meeting::kNone;
      if (has_clocks()) joiner_.Acquire(thread.view, snapshot);
      if (&thread != running_) Wake(thread);
    }
  }
}

uint32_t Cluster::NewAgent(AsyncAgent agent) {
  agents_.push_back(agent);
  return thread_count() + uint32_t(agents_.size()) - 1;
}

std::string Cluster::NameOf(uint64_t cluster, uint32_t agent) const {
  std::string of;
  if (cluster != number_ || size() > 1) {
    const uint32_t rank = IsAsync(agent) ? 0 : agent / grid_.threads;
    of = " of block " + (cluster == number_ ? blocks_[rank]->IndexName() : grid_.BlockName(cluster, rank));
  }
  if (!IsAsync(agent)) return "thread " + std::to_string(agent % grid_.threads) + of;
  if (cluster != number_) return "an asynchronous copy of another block";
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

void Cluster::Launch(std::unique_ptr<TensorTransfer> transfer) {
  if (!lands_late()) return transfer->Land();
  in_flight_.push_back(std::move(transfer));
}

void Cluster::LandOne() {
  std::swap(in_flight_[Random(uint32_t(in_flight_.size()))], in_flight_.back());
  const std::unique_ptr<TensorTransfer> transfer = std::move(in_flight_.back());
  in_flight_.pop_back();
  transfer->Land();
}

// Copies that nobody waited for: the blocks they write to have ended.
void Cluster::ReportLost() {
  for (const auto& transfer : in_flight_) {
    transfer->to.front().first->Report(FindingKind::kAsyncPending, 0, transfer->location, 0,
                                       "the block ended before a tensor load to byte " + std::to_string(transfer->offset) +
                                           " of its shared memory had come; nobody waited for it");
  }
}

void Cluster::ReportStuck() {
  std::string positions;
  Thread* waiting = nullptr;
  for (const auto& block : blocks_) {
    positions += (positions.empty() ? "" : "; ") + (size() > 1 ? "block " + block->IndexName() + ": " : "") + block->Positions();
    for (Thread& thread : block->threads())
      if (!thread.done && waiting == nullptr) waiting = &thread;
  }
  waiting->block->Report(ended_ > 0 ? FindingKind::kDivergence : FindingKind::kDeadlock, waiting->index, waiting->location, 0,
                         std::string(ended_ > 0 ? "threads wait for others that have ended" : "no thread can go on") + ": " + positions);
  given_up_ = true;
  grid_.recorder->Stop();
}

}  // namespace kiln::emulator
