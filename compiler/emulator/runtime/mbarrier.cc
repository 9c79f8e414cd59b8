// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/mbarrier.h"

#include "compiler/emulator/runtime/check.h"
#include "compiler/emulator/runtime/gang.h"

namespace kiln::emulator {

Mbarrier::Mbarrier(Block& block, uint32_t offset, uint32_t count, uint32_t location)
    : block_(block), offset_(offset), count_(count), pending_(count), init_location_(location) {
  agent_ = block.gang().NewAgent({AsyncAgent::Kind::kTransfers, block.rank(), offset});
  Thread& self = block.thread();
  init_agent_ = self.agent;
  init_time_ = self.view.time++;
}

std::string Mbarrier::Describe() const {
  return "the mbarrier at byte " + std::to_string(offset_) + " (" + std::to_string(pending_) + " of " + std::to_string(count_) +
         " arrivals and " + std::to_string(tx_) + " bytes are missing)";
}

bool Mbarrier::IsBusy() const { return !waiting_.empty() || !in_flight_.empty() || pending_ != count_ || tx_ != 0; }

void Mbarrier::CheckUse(uint32_t location, bool needs_fence) {
  if (!block_.grid().clocks) return;
  Block& user = Block::Current();
  Thread& self = user.thread();
  if (self.agent != init_agent_ && !self.view.seen.Covers(init_agent_, init_time_)) {
    user.Report(FindingKind::kMbarrier, self.index, location, init_location_,
                "thread " + std::to_string(self.index) + " uses " + Describe() + ", which thread " + std::to_string(init_agent_ % user.grid().threads) +
                    " initialised with no barrier between them");
  }
  if (needs_fence && !published_) {
    user.Report(FindingKind::kUnfenced, self.index, location, init_location_,
                "thread " + std::to_string(self.index) + " uses " + Describe() + " with a tensor copy or from another block; after its "
                "initialisation there is no fence.mbarrier_init or fence.proxy.async");
  }
}

void Mbarrier::Arrive(uint32_t location) {
  Block& user = Block::Current();
  if (pending_ == 0) {
    user.Fault(FindingKind::kMbarrier, location,
               "thread " + std::to_string(user.thread().index) + " arrives once more than the " + std::to_string(count_) + " times of a phase at " + Describe());
  }
  if (user.grid().clocks) sync_.Release(user.thread().agent, user.thread().view);
  --pending_;
  EndPhase();
}

void Mbarrier::Expect(uint32_t bytes, uint32_t location) {
  tx_ += bytes;
  if (tx_ <= kMost) return;
  Block::Current().Fault(FindingKind::kMbarrier, location, "more than 2^20 - 1 bytes are expected at " + Describe());
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

// Those who see the phase end have seen the copies before the first that is still under way.
void Mbarrier::Complete(uint32_t number, uint32_t bytes, uint32_t location) {
  in_flight_.erase(number);
  tx_ -= bytes;
  if (tx_ < -int64_t(kMost)) {
    block_.Report(FindingKind::kMbarrier, 0, location, 0, "more than 2^20 - 1 bytes came unexpected to " + Describe());
    tx_ = 0;
  }
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
  if (count == 0 || count > Mbarrier::kMost) {
    block_.Fault(FindingKind::kMbarrier, location, "an mbarrier of " + std::to_string(count) + " arrivals: 1 … 2^20 - 1 are possible");
  }
  const auto offset = uint32_t(data - block_.shared());
  const auto known = at_.find(offset);
  if (known != at_.end() && known->second.IsBusy()) {
    block_.Fault(FindingKind::kMbarrier, location, "thread " + std::to_string(self.index) + " initialises " + known->second.Describe() + " again while it is in use");
  }
  at_.erase(offset);
  CheckShared(block_, {self.index, location, Touch::kWrite}, data, 8, 8);
  at_.emplace(std::piecewise_construct, std::forward_as_tuple(offset), std::forward_as_tuple(block_, offset, count, location));
}

Mbarrier& Mbarriers::At(uint32_t offset, uint32_t location) {
  const auto it = at_.find(offset);
  if (it == at_.end()) {
    Block& user = Block::Current();
    user.Fault(FindingKind::kMbarrier, location, "thread " + std::to_string(user.thread().index) + " uses an mbarrier at byte " + std::to_string(offset) +
               " of shared memory" + (&user == &block_ ? "" : " of block " + block_.IndexName()) + ", where none was initialised");
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
