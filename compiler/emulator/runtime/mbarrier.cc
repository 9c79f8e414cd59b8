// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/mbarrier.h"

#include "compiler/emulator/runtime/check/check.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {

Mbarrier::Mbarrier(Block& block, uint32_t offset, uint32_t count, uint32_t location)
    : block_(block), offset_(offset), count_(count), pending_(count), init_location_(location) {
  agent_ = block.gang().NewAgent({AsyncAgent::Kind::kTransfers, block.rank(), offset});
  Thread& self = block.thread();
  init_agent_ = self.agent;
  init_time_ = self.view.time++;
  last_use_ = {&self, location};
}

std::string Mbarrier::Describe() const {
  std::string name;
  for (const Element& element : SharedPlace(block_, offset_, block_).place.elements)
    name = " (" + element.buffer + "[" + std::to_string(element.number) + "])";
  return "the mbarrier at byte " + std::to_string(offset_) + name + " (" + std::to_string(pending_) + " of " + std::to_string(count_) +
         " arrivals and " + std::to_string(tx_) + " bytes are missing)";
}

bool Mbarrier::IsBusy() const { return !waiting_.empty() || !in_flight_.empty() || pending_ != count_ || tx_ != 0; }

void Mbarrier::CheckUse(uint32_t location, bool needs_fence) {
  if (!block_.grid().clocks) return;
  Block& user = Block::Current();
  Thread& self = user.thread();
  if (self.agent != init_agent_ && !self.view.seen.Covers(init_agent_, init_time_)) {
    user.Report(FindingKind::kMbarrier, {self.index, location, init_location_},
                user.ThreadName(self.index) + " uses " + Describe() + ", which thread " + std::to_string(init_agent_ % user.grid().threads) +
                    " initialised with no barrier between them",
                SharedPlace(block_, offset_, user).place);
  }
  if (needs_fence && !published_) {
    user.Report(FindingKind::kUnfenced, {self.index, location, init_location_},
                user.ThreadName(self.index) + " uses " + Describe() +
                    " with a tensor copy or from another block; after its initialisation by thread " +
                    std::to_string(init_agent_ % user.grid().threads) + " there is no fence.mbarrier_init or fence.proxy.async",
                SharedPlace(block_, offset_, user).place);
  }
}

void Mbarrier::Fault(uint32_t location, const std::string& message) {
  Block& user = Block::Current();
  user.Fault(FindingKind::kMbarrier, {user.thread().index, location, last_use_.location},
             user.ThreadName(user.thread().index) + message + Describe() + "; the last to do something to it was " +
                 last_use_.by->block->ThreadName(last_use_.by->index),
             SharedPlace(block_, offset_, user).place);
}

void Mbarrier::Arrive(uint32_t location) {
  Block& user = Block::Current();
  if (pending_ == 0) Fault(location, " arrives once more than the " + std::to_string(count_) + " times of a phase at ");
  last_use_ = {&user.thread(), location};
  if (user.grid().clocks) sync_.Release(user.thread().agent, user.thread().view);
  --pending_;
  EndPhase();
}

void Mbarrier::Expect(uint32_t bytes, uint32_t location) {
  tx_ += bytes;
  if (tx_ > kMost) Fault(location, " expects more than 2^20 - 1 bytes at ");
}

void Mbarrier::Deliver(uint32_t bytes, uint32_t location) {
  Thread& from = Block::Current().thread();
  if (block_.grid().clocks) sync_.Release(from.agent, from.view);
  Complete(Start(), bytes, {&from, location});
}

void Mbarrier::Wait(uint32_t parity, uint32_t location) {
  Gang& gang = block_.gang();
  Thread& self = gang.running();
  while (!Passed(parity)) {
    self.waits_for = Meeting::kPhase;
    self.site = 0;
    self.location = location;
    self.detail = uint64_t(offset_) << 1 | (parity & 1);
    waiting_.push_back(&self);
    gang.Park();
  }
  self.waits_for = Meeting::kNone;
  if (block_.grid().clocks) gang.joiner().Acquire(self.view, last_);
}

uint32_t Mbarrier::Start() {
  in_flight_.insert(++started_);
  return started_;
}

// Threads that see the phase end know all copies before the first one that is still under way.
void Mbarrier::Complete(uint32_t number, uint32_t bytes, const MbarrierUse& copy) {
  in_flight_.erase(number);
  tx_ -= bytes;
  if (tx_ < -int64_t(kMost)) {
    Block& user = *copy.by->block;
    user.Report(FindingKind::kMbarrier, {copy.by->index, copy.location, last_use_.location},
                "more than 2^20 - 1 bytes came unexpected to " + Describe(), SharedPlace(block_, offset_, user).place);
    tx_ = 0;
  }
  last_use_ = copy;
  const uint32_t complete = in_flight_.empty() ? started_ : *in_flight_.begin() - 1;
  if (block_.grid().clocks && complete > 0) sync_.Advance(agent_, complete);
  EndPhase();
}

void Mbarrier::EndPhase() {
  if (pending_ != 0 || tx_ != 0) return;
  ++phase_;
  pending_ = count_;
  if (block_.grid().clocks) last_ = sync_.Take();
  for (Thread* thread : waiting_) block_.gang().Wake(*thread);
  waiting_.clear();
}

void Mbarriers::Init(std::byte* data, uint32_t count, uint32_t location) {
  Thread& self = block_.thread();
  const auto offset = uint32_t(data - block_.shared());
  if (count == 0 || count > Mbarrier::kMost) {
    block_.Fault(FindingKind::kMbarrier, location, "an mbarrier of " + std::to_string(count) + " arrivals: 1 … 2^20 - 1 are possible",
                 SharedPlace(block_, offset, block_).place);
  }
  const auto known = at_.find(offset);
  if (known != at_.end() && known->second.IsBusy()) {
    block_.Fault(FindingKind::kMbarrier, {self.index, location, known->second.last_use().location},
                 block_.ThreadName(self.index) + " initialises " + known->second.Describe() + " again while it is in use",
                 SharedPlace(block_, offset, block_).place);
  }
  at_.erase(offset);
  CheckShared(block_, {self.index, location, Touch::kWrite}, data, 8, 8);
  at_.emplace(std::piecewise_construct, std::forward_as_tuple(offset), std::forward_as_tuple(block_, offset, count, location));
}

Mbarrier& Mbarriers::At(uint32_t offset, uint32_t location) {
  const auto it = at_.find(offset);
  if (it == at_.end()) {
    Block& user = Block::Current();
    NamedPlace at = SharedPlace(block_, offset, user);
    user.Fault(FindingKind::kMbarrier, location,
               user.ThreadName(user.thread().index) + " uses an mbarrier in " + at.text + ", where none was initialised", std::move(at.place));
  }
  return it->second;
}

const Mbarrier* Mbarriers::Nearest(uint32_t offset, uint32_t bytes) const {
  const auto after = at_.lower_bound(offset + bytes);
  if (after == at_.begin()) return nullptr;
  const Mbarrier& last = std::prev(after)->second;
  return last.offset() + 8 > offset ? &last : nullptr;
}

const Mbarrier* Mbarriers::Find(uint32_t offset) const {
  const auto it = at_.find(offset);
  return it == at_.end() ? nullptr : &it->second;
}

void Mbarriers::PublishOf(uint32_t agent) {
  for (auto& [offset, mbarrier] : at_) {
    if (mbarrier.init_agent() == agent) mbarrier.Publish();
  }
}

}  // namespace kiln::emulator
