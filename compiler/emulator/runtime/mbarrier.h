// SPDX-License-Identifier: Apache-2.0
//
// mbarrier objects, from the PTX ISA, "mbarrier". A phase ends when its pending arrivals and its tx-count are both zero; the next
// begins with the count that init gave. A wait with a parity passes while the phase of that parity is the last that ended.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/emulator/runtime/clock.h"

namespace kiln::emulator {

class Block;
struct Thread;

// The last operation on an mbarrier: its thread and its statement.
struct MbarrierUse {
  const Thread* by = nullptr;
  uint32_t location = 0;
};

class Mbarrier {
 public:
  static constexpr uint32_t kMost = (1u << 20) - 1;  // arrivals, and bytes either way

  Mbarrier(Block& block, uint32_t offset, uint32_t count, uint32_t location);

  uint32_t offset() const { return offset_; }
  uint32_t agent() const { return agent_; }
  bool Passed(uint32_t parity) const { return (phase_ & 1) != (parity & 1); }
  const Snapshot& last() const { return last_; }

  void Arrive(uint32_t location);  // by the running thread
  void Expect(uint32_t bytes, uint32_t location);
  void Deliver(uint32_t bytes, uint32_t location);  // stored here by the running thread
  void Wait(uint32_t parity, uint32_t location);
  // A copy that will complete here, numbered; and its bytes when they have come.
  uint32_t Start();
  void Complete(uint32_t number, uint32_t bytes, const MbarrierUse& copy);
  void Publish() { published_ = true; }
  bool published() const { return published_; }
  // By the running thread, before anything else: initialisation comes before, for other blocks and copies with its fence.
  void CheckUse(uint32_t location, bool needs_fence);
  bool IsBusy() const;
  uint32_t init_agent() const { return init_agent_; }
  uint32_t init_location() const { return init_location_; }
  const MbarrierUse& last_use() const { return last_use_; }  // initialisation, an arrival or a copy that completed
  std::string Describe() const;                              // "the mbarrier at byte 64 (1 of 2 arrivals and 4096 bytes are missing)"

 private:
  void EndPhase();
  [[noreturn]] void Fault(uint32_t location, const std::string& message);  // of the running thread's, after what was done last

  Block& block_;
  const uint32_t offset_, count_;
  uint32_t pending_;
  int64_t tx_ = 0;
  uint64_t phase_ = 0;
  SyncPoint sync_;
  Snapshot last_;
  std::vector<Thread*> waiting_;
  uint32_t agent_ = 0;
  uint32_t started_ = 0;
  std::set<uint32_t> in_flight_;
  uint32_t init_agent_, init_time_, init_location_;
  MbarrierUse last_use_;
  bool published_ = false;
};

// The mbarriers of one block, by their place in shared memory.
class Mbarriers {
 public:
  explicit Mbarriers(Block& block) : block_(block) {}
  void Clear() { at_.clear(); }
  // By the running thread.
  void Init(std::byte* data, uint32_t count, uint32_t location);
  // The block ends where there is none.
  Mbarrier& At(uint32_t offset, uint32_t location);
  // Is one of these bytes part of one? Null: no.
  const Mbarrier* Touching(uint32_t offset, uint32_t bytes) const { return at_.empty() ? nullptr : Nearest(offset, bytes); }
  void PublishOf(uint32_t agent);
  const Mbarrier* Find(uint32_t offset) const;

 private:
  const Mbarrier* Nearest(uint32_t offset, uint32_t bytes) const;

  Block& block_;
  std::map<uint32_t, Mbarrier> at_;
};

}  // namespace kiln::emulator
