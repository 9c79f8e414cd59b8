// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

constexpr uint32_t kIds = 1 << 14;

// A quiet NaN that says which accumulator and which of its words.
uint32_t Mark(uint32_t id, uint32_t word) { return 0x7fc00000 | (id % kIds) << 8 | (word & 0xff); }

struct BeginOperands {
  uint32_t* c;
};

Accumulator* MarkedBy(Thread& thread, uint32_t mark) {
  const auto it = std::ranges::find_if(thread.accumulators, [&](const Accumulator& a) { return Mark(a.id, 0) == mark; });
  return it == thread.accumulators.end() ? nullptr : &*it;
}

bool IsWhole(const Accumulator& accumulator, const uint32_t* words, uint32_t count) {
  if (accumulator.words.size() > count) return false;
  for (uint32_t i = 0; i < accumulator.words.size(); ++i) {
    if (words[i] != Mark(accumulator.id, i)) return false;
  }
  return true;
}

// "register 5 of b7", or "a register" where nobody has said in which fragment they lie.
NamedPlace PlaceOf(std::optional<uint32_t> fragment, uint32_t reg) {
  if (!fragment) return {"a register", {.address = reg, .elements = {}}};
  const std::string name = "%b" + std::to_string(*fragment);
  return {"register " + std::to_string(reg) + " of " + name, {.address = reg, .elements = {{name, reg}}}};
}

NamedPlace PlaceOf(const Accumulator& accumulator, uint32_t word) { return PlaceOf(accumulator.fragment, accumulator.first_register + word); }

// The first of the words that is no mark of it.
uint32_t FirstChanged(const Accumulator& accumulator, const uint32_t* words, uint32_t count) {
  uint32_t i = 0;
  while (i < count && words[i] == Mark(accumulator.id, i)) ++i;
  return i;
}

void ReportChanged(Block& block, const Thread& thread, const Accumulator& accumulator, uint32_t word, uint32_t location) {
  NamedPlace at = PlaceOf(accumulator, word);
  block.Report(FindingKind::kInFlight, {thread.index, location, accumulator.location},
               block.ThreadName(thread.index) + " changed " + at.text + ", which wgmma writes, before it had waited for it", std::move(at.place));
}

// The accumulator that a product of group `group` adds to: one under way, or a new one with these values.
uint32_t Join(Block& block, Thread& thread, uint32_t count, uint32_t* c, uint32_t group, uint32_t location) {
  Accumulator* known = MarkedBy(thread, c[0]);
  if (known != nullptr && !IsWhole(*known, c, count)) {
    ReportChanged(block, thread, *known, FirstChanged(*known, c, count), location);
    known = nullptr;
  }
  if (known == nullptr) known = &thread.accumulators.emplace_back(Accumulator{.id = group, .words = {c, c + count}, .fragment = {}});
  known->group = group;
  known->location = location;
  for (uint32_t i = 0; i < count; ++i) c[i] = Mark(known->id, i);
  return known->id;
}

void Clear(Block& block, uint32_t first, const WgmmaGroup& group) {
  if (!group.clear) return;
  for (uint32_t t = first; t < first + kGroupThreads; ++t) {
    for (Accumulator& a : block.ThreadAt(t).accumulators)
      if (a.id == group.accumulator) std::ranges::fill(a.words, 0);
  }
}

// The last group that was waited for.
uint32_t LandedOf(const WgmmaGroups& products) { return products.started.empty() ? products.number : products.started.front().number - 1; }

void Land(Block& block, Warp& warps) {
  const WgmmaGroup& group = warps.products.started.front();
  if (block.lands_late()) {
    Clear(block, warps.first, group);
    RunWgmma(block, warps.first, group.accumulator, group.steps);
  }
  warps.products.started.pop_front();
}

// Replaces marks by results and forgets those accumulators.
void Deliver(Block& block, Thread& thread, uint32_t landed, uint32_t count, uint32_t* words, uint32_t location) {
  for (uint32_t i = 0; i < count; ++i) {
    Accumulator* a = MarkedBy(thread, words[i]);
    if (a == nullptr) continue;
    if (!IsWhole(*a, words + i, count - i)) {
      ReportChanged(block, thread, *a, FirstChanged(*a, words + i, count - i), location);
      continue;
    }
    if (a->group > landed) continue;  // still under way: the marks stay
    std::ranges::copy(a->words, words + i);
    i += uint32_t(a->words.size()) - 1;
    thread.accumulators.erase(thread.accumulators.begin() + (a - thread.accumulators.data()));
  }
}

}  // namespace

void BeginProducts(Block& block, uint32_t count, uint32_t* c, bool clear, uint32_t site, uint32_t location) {
  BeginOperands own{c};
  block.MeetGroup(Meeting::kWgmma, site, location, &own, [&](std::span<Thread> threads) {
    if (threads.size() != kGroupThreads) block.Fault(FindingKind::kOperands, location, "wgmma in a part of a group of four warps");
    WgmmaGroups& products = block.group().products;
    if (products.agent == 0) products.agent = block.gang().NewAgent({AsyncAgent::Kind::kProducts, block.rank(), threads[0].index});
    WgmmaGroup group{.number = ++products.number, .accumulator = 0, .clear = clear, .steps = {}};
    for (Thread& thread : threads) {
      const uint32_t id = Join(block, thread, count, static_cast<BeginOperands*>(thread.operands)->c, group.number, location);
      if (thread.index != threads[0].index && id != group.accumulator) {
        const Accumulator& other = *std::ranges::find(threads[0].accumulators, group.accumulator, &Accumulator::id);
        NamedPlace at = PlaceOf(other, 0);
        block.Fault(FindingKind::kInFlight, {thread.index, location, other.location},
                    "threads " + std::to_string(threads[0].index) + " and " + std::to_string(thread.index) + " of block " + block.IndexName() +
                        " give one wgmma accumulators of different products in " + at.text,
                    std::move(at.place));
      }
      group.accumulator = id;
    }
    if (!block.lands_late()) Clear(block, threads[0].index, group);
    products.started.push_back(std::move(group));
  });
}

void StepProducts(Block& block, WgmmaStep own, const uint32_t* words, uint32_t site) {
  own.a_words.assign(words, words + 4);
  own.metadata = {words[kWordOfMetadata]};
  block.MeetGroup(Meeting::kWgmma, site, own.location, &own, [&](std::span<Thread> threads) {
    WgmmaStep all = own;
    all.a_words.clear();
    all.metadata.clear();
    for (const Thread& thread : threads) {
      const auto& step = *static_cast<const WgmmaStep*>(thread.operands);
      if (step.a != own.a || step.b != own.b) {
        block.Fault(FindingKind::kNotUniform, {thread.index, own.location},
                    "thread " + std::to_string(thread.index) + " gives wgmma another descriptor");
      }
      all.a_words.insert(all.a_words.end(), step.a_words.begin(), step.a_words.end());
      all.metadata.push_back(step.metadata[0]);
    }
    CheckWgmma(block, threads[0].index, all);
    // Early or late: shared memory is read now, or at the wait.
    WgmmaGroup& group = block.group().products.started.back();
    if (!block.lands_late()) RunWgmma(block, threads[0].index, group.accumulator, {&all, 1});
    group.steps.push_back(std::move(all));
  });
}

void WaitProducts(Block& block, uint32_t pending, uint32_t count, uint32_t* words, uint32_t site, uint32_t location) {
  uint32_t landed = 0;
  block.MeetGroup(Meeting::kWgmmaWait, site, location, &landed, [&](std::span<Thread> threads) {
    Warp& warps = block.group();
    while (warps.products.started.size() > pending) Land(block, warps);
    landed = LandedOf(warps.products);
    const bool clocks = block.grid().clocks && landed > 0;
    const Snapshot done = clocks ? Snapshot{Clock().With(warps.products.agent, landed), {}} : Snapshot{};
    for (Thread& thread : threads) {
      *static_cast<uint32_t*>(thread.operands) = landed;
      if (clocks) block.gang().joiner().Acquire(thread.view, done);
    }
  });
  Deliver(block, block.thread(), landed, count, words, location);
}

void TouchProducts(Block& block, uint32_t word, uint32_t location) {
  Thread& self = block.thread();
  for (const Accumulator& a : self.accumulators) {
    if (Mark(a.id, word) != word) continue;
    NamedPlace at = PlaceOf(a, word & 0xff);
    block.Report(FindingKind::kInFlight, {self.index, location, a.location},
                 block.ThreadName(self.index) + " reads " + at.text + ", which wgmma writes, before it had waited for it", std::move(at.place));
    return;
  }
}

namespace {

void ForgetLanded(Block& block, Thread& self) {
  std::erase_if(self.in_use, [landed = LandedOf(block.group().products)](const RegistersInUse& use) { return use.group <= landed; });
}

}  // namespace

void UseRegisters(Block& block, RegistersInUse use) {
  Thread& self = block.thread();
  ForgetLanded(block, self);
  use.group = block.group().products.number;
  self.in_use.push_back(use);
  for (Accumulator& a : self.accumulators) {
    if (a.group != use.group || a.fragment) continue;
    a.fragment = use.fragment;
    a.first_register = use.first;
  }
}

void AssignRegister(Block& block, uint32_t fragment, uint32_t reg, uint32_t value, uint32_t location) {
  Thread& self = block.thread();
  if (self.in_use.empty()) return;
  ForgetLanded(block, self);
  for (const RegistersInUse& use : self.in_use) {
    if (use.fragment != fragment || reg < use.first || reg >= use.first + use.count) continue;
    const auto marks = [&](const Accumulator& a) { return Mark(a.id, value & 0xff) == value; };
    if (std::ranges::any_of(self.accumulators, marks)) return;  // what the product itself leaves there
    NamedPlace at = PlaceOf(fragment, reg);
    block.Report(FindingKind::kInFlight, {self.index, location, use.location},
                 block.ThreadName(self.index) + " changes " + at.text + ", which wgmma uses, before it had waited for it", std::move(at.place));
    return;
  }
}

void EndProducts(Block& block) {
  Thread& self = block.thread();
  if (self.accumulators.empty()) return;
  NamedPlace at = PlaceOf(self.accumulators[0], 0);
  block.Report(FindingKind::kInFlight, {self.index, self.accumulators[0].location},
               block.ThreadName(self.index) + " ends, and never waited for a product of wgmma in " + at.text, std::move(at.place));
}

}  // namespace kiln::emulator
