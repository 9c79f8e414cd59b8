// SPDX-License-Identifier: Apache-2.0
//
// What warps of different roles share beside memory: barriers of a part of the block (PTX ISA, barrier.cta) and registers (PTX ISA,
// setmaxnreg).
#include <algorithm>

#include "compiler/emulator/runtime/gang.h"

namespace kiln::emulator {
namespace {

std::string Number(uint32_t v) { return std::to_string(v); }

}  // namespace

// Whole warps arrive. The last to come lets those go on that wait; all who take part know what all had done.
void Block::ArriveNamed(uint32_t id, uint32_t threads, std::span<Thread> warp, bool wait, uint32_t location) {
  NamedBarrierState& named = named_[id];
  if (named.arrived == 0) named.came_first = {warp[0].index, location};
  const About about{warp[0].index, location, named.came_first.location};
  if (named.arrived > 0 && named.expected != threads) {
    Fault(FindingKind::kDivergence, about,
          ThreadName(about.thread) + " comes to barrier " + Number(id) + " of " + Number(threads) + " threads, to which thread " +
              Number(named.came_first.thread) + " came as one of " + Number(named.expected));
  }
  named.expected = threads;
  named.arrived += uint32_t(warp.size());
  for (Thread& t : warp) {
    if (grid_.clocks) named.sync.Release(t.agent, t.view);
    if (!wait) continue;
    t.waits_for = Meeting::kNamedBarrier;
    t.detail = id;
    named.waiting.push_back(&t);
  }
  if (named.arrived > threads) {
    Fault(FindingKind::kDivergence, about,
          Number(named.arrived) + " threads came to barrier " + Number(id) + " of " + Number(threads) + ", thread " +
              Number(named.came_first.thread) + " first and " + ThreadName(about.thread) + " last");
  }
  if (named.arrived == threads) Open(named);
}

void Block::Open(NamedBarrierState& named) {
  const Snapshot snapshot = grid_.clocks ? named.sync.Take() : Snapshot{};
  for (Thread* t : named.waiting) {
    t->waits_for = Meeting::kNone;
    if (grid_.clocks) gang_.joiner().Acquire(t->view, snapshot);
    if (t != &thread()) gang_.Wake(*t);
  }
  named.waiting.clear();
  named.arrived = 0;
}

void Block::NamedBarrier(uint32_t id, uint32_t threads, bool wait, uint32_t site, uint32_t location) {
  if (id > 15 || threads == 0 || threads % grid_.warp_size != 0 || threads > grid_.threads) {
    Fault(FindingKind::kOperands, location,
          "barrier " + Number(id) + " of " + Number(threads) + " threads: there are 16, of whole warps of the block's " + Number(grid_.threads));
  }
  MeetWarp(Meeting::kNamedArrive, site, location, nullptr, [&](std::span<Thread> warp) { ArriveNamed(id, threads, warp, wait, location); });
  while (wait && thread().waits_for == Meeting::kNamedBarrier) gang_.Park();
}

// PTX ISA, bar.warp.sync; LLVM's AMDGPU wave.barrier.
void Block::LanesBarrier(uint32_t first, uint32_t count, uint32_t site, uint32_t location) {
  Thread& self = thread();
  const uint32_t lane = self.index - self.warp->first;
  if (count == 0 || first + count > self.warp->count || lane < first || lane >= first + count) {
    Fault(FindingKind::kOperands, location, "lane " + Number(lane) + " at a barrier of lanes " + Number(first) + " to " + Number(first + count - 1));
  }
  NamedBarrierState& lanes = lanes_[{self.warp->first + first, count}];
  if (lanes.arrived == 0) {
    lanes.came_first = {self.index, location};
    lanes.expected = count, lanes.site = site;
  }
  if (lanes.site != site) {
    Fault(FindingKind::kDivergence, {self.index, location, lanes.came_first.location},
          ThreadName(self.index) + " came to a barrier of " + Number(count) + " lanes and thread " + Number(lanes.came_first.thread) +
              ", a lane of the same warp, to a different barrier of the same lanes");
  }
  ++lanes.arrived;
  if (grid_.clocks) lanes.sync.Release(self.agent, self.view);
  self.waits_for = Meeting::kLanesBarrier;
  self.site = site, self.location = location;
  lanes.waiting.push_back(&self);
  if (lanes.arrived == count) Open(lanes);
  while (self.waits_for == Meeting::kLanesBarrier) gang_.Park();
}

void Block::GrantRegisters() {
  while (!wants_registers_.empty()) {
    const auto [group, more] = wants_registers_.front();
    if (more > free_registers_) return;
    free_registers_ -= more;
    group->registers += more;
    wants_registers_.erase(wants_registers_.begin());
    for (uint32_t i = group->first; i < group->first + group->count; ++i) {
      threads_[i].waits_for = Meeting::kNone;
      if (&threads_[i] != &thread()) gang_.Wake(threads_[i]);
    }
  }
}

void Block::SetRegisters(uint32_t count, bool more, uint32_t at_start, uint32_t site, uint32_t location) {
  MeetGroup(Meeting::kSetRegisters, site, location, nullptr, [&](std::span<Thread> threads) {
    Warp& own = group();
    if (own.registers == 0) own.registers = at_start;
    if (threads.size() != kGroupThreads) Fault(FindingKind::kOperands, location, "setmaxnreg in a part of a group of four warps");
    if (count < 24 || count > 256 || count % 8 != 0) {
      Fault(FindingKind::kOperands, location, "setmaxnreg to " + Number(count) + " registers: a multiple of 8 in 24 … 256 is possible");
    }
    if (more ? count < own.registers : count > own.registers) {
      Fault(FindingKind::kOperands, location,
            "setmaxnreg" + std::string(more ? ".inc" : ".dec") + " from " + Number(own.registers) + " registers to " + Number(count));
    }
    if (more) {
      wants_registers_.emplace_back(&own, count - own.registers);
      for (Thread& t : threads) t.waits_for = Meeting::kRegisters;
    } else {
      free_registers_ += own.registers - count;
      own.registers = count;
    }
    GrantRegisters();
  });
  while (thread().waits_for == Meeting::kRegisters) gang_.Park();
}

}  // namespace kiln::emulator
