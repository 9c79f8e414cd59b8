// SPDX-License-Identifier: Apache-2.0
//
// What happened before what, as vector clocks. An agent is a thread of the cluster, or something that acts behind the threads'
// backs: the copies of one mbarrier, the tensor stores of one thread, the products of one group of warps. An agent's time grows; an
// access is (agent, time). A thread has seen it where its clock has that agent at that time or later.
//
// A second clock of each thread holds what a proxy fence lies behind: PTX ISA, "Causality order", asks for one on the path from a
// write by the generic proxy to an access by the asynchronous one, and from a read by the first to a write by the second.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace kiln::emulator {

// Values that many threads share; never changed once made.
class Clock {
 public:
  Clock() = default;
  explicit Clock(std::vector<uint32_t> times) : times_(std::make_shared<const std::vector<uint32_t>>(std::move(times))) {}
  bool Covers(uint32_t agent, uint32_t time) const { return times_ != nullptr && agent < times_->size() && (*times_)[agent] >= time; }
  const std::vector<uint32_t>* times() const { return times_.get(); }  // null: nothing
  bool operator==(const Clock&) const = default;                       // the same object
  // With one more entry.
  Clock With(uint32_t agent, uint32_t time) const;

 private:
  std::shared_ptr<const std::vector<uint32_t>> times_;
};

// What a thread knows. Its own accesses are at `time`.
struct View {
  Clock seen, fenced;
  uint32_t time = 1;

  void Fence(uint32_t self) {
    fenced = seen.With(self, time);
    ++time;
  }
};

// What those who wait learn when something they wait for has come.
struct Snapshot {
  Clock seen, fenced;
};

// Remembers the last result: many threads learn the same.
class Joiner {
 public:
  void Acquire(View& view, const Snapshot& snapshot) {
    view.seen = seen_.Join(view.seen, snapshot.seen);
    view.fenced = fenced_.Join(view.fenced, snapshot.fenced);
  }

 private:
  struct Memo {
    Clock a, b, result;
    Clock Join(const Clock& x, const Clock& y);
  };
  Memo seen_, fenced_;
};

// Where threads leave what they know for others.
class SyncPoint {
 public:
  void Release(uint32_t agent, View& view);
  void Advance(uint32_t agent, uint32_t time);  // by something that is no thread
  Snapshot Take();

 private:
  struct Sum {
    std::vector<uint32_t> times;
    Clock last;   // of what was merged
    Clock taken;  // while nothing was added since
    bool changed = true;
    void Merge(const Clock& clock);
    void Set(uint32_t agent, uint32_t time);
    Clock Take();
  };
  Sum seen_, fenced_;
};

}  // namespace kiln::emulator
