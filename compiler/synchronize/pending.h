// SPDX-License-Identifier: Apache-2.0
//
// What `synchronize` keeps of the accesses before a statement, and what it finds the statement to need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/analysis/iterations.h"
#include "ir/op.h"

namespace kiln::compiler {

// An access since the last barrier. `age` of an async copy's write: −1 if the copy is issued but not committed; n if it is committed and n
// groups were committed after it. kDone: the copy has landed, or the access is an ordinary one. kStoring: a tensor store may still read the
// tile.
inline constexpr int kDone = 1 << 20;
inline constexpr int kStoring = kDone - 1;
inline constexpr int kMaxAge = 64;  // no wait looks further back
// An access is compared with at most so many before it; a barrier then ends the comparisons. After so many statements a barrier costs
// little, and the comparisons of a long kernel stay in proportion to its length.
inline constexpr std::ptrdiff_t kMostPending = 256;
struct Pending {
  ir::BufferId buffer;
  bool write;
  std::optional<Version> version;
  int age;
  const ir::Stmt* stmt;
  bool within_group = false;  // each group had its own barrier since: only other buffers on the same bytes can still conflict
  int met = 0;                // depth of the enclosing narrowed branch whose barrier has passed since; 0: no such barrier
  // In a kernel with barriers of its own: the threads that came, and whether they have arrived at one since.
  uint32_t begin = 0, end = 0;
  bool released = false;
  int crossed = 0;  // the loop around, counted from the outermost, that is the outermost of those that have begun another iteration since; 0: none
  bool awaiting = false;  // in a branch of some threads, which wait in it for others: these cannot join them before
  auto operator<=>(const Pending&) const = default;
};
using State = std::vector<Pending>;  // sorted, unique

// The first part is sorted already; only the few accesses that were appended are sorted and merged in.
inline void Normalize(State& state) {
  const auto added = std::ranges::is_sorted_until(state);
  std::ranges::sort(added, state.end());
  std::ranges::inplace_merge(state, added);
  state.erase(std::ranges::unique(state).begin(), state.end());
}

// What is pending where a loop is left joins what is pending at its exit.
inline void Leave(State& exit, State& state) {
  exit.insert(exit.end(), state.begin(), state.end());
  Normalize(exit);
  state.clear();
}

// Of comparing so many accesses with what is pending, in visits: 64 comparisons take as long as the rest of the visit of a statement.
inline int64_t CostOf(const State& state, size_t accesses = 1) { return int64_t(accesses * state.size()) / 64; }

// What is pending before a loop over `var` as its first iteration sees it, in which the variable is 0: fixed versions are relative to it.
inline State AtFirst(State state, std::optional<ir::VarId> var) {
  for (Pending& p : state)
    if (p.version && !p.version->var && var && p.version->modulus <= kMostVersions) p.version->var = var;
  Normalize(state);
  return state;
}

// What an iteration leaves, seen from the next one: offsets of versions are one less.
inline void SeeFromNext(State& state, std::optional<ir::VarId> var) {
  for (Pending& p : state) {
    if (p.version && p.version->var && p.version->var == var) p.version->offset = (p.version->offset - 1 + p.version->modulus) % p.version->modulus;
    p.age = p.age >= kStoring ? p.age : std::min(p.age, kMaxAge);
  }
}

// In a kernel with barriers of its own: an iteration of the loop at this depth has ended.
inline void Cross(State& state, int depth) {
  for (Pending& p : state) p.crossed = p.crossed == 0 ? depth : std::min(p.crossed, depth);
}

// Behind the loop at this depth.
inline void ForgetCrossings(State& state, int depth) {
  for (Pending& p : state) p.crossed = p.crossed >= depth ? 0 : p.crossed;
}

// Behind the loop its variable means nothing any more.
inline void Forget(State& state, std::optional<ir::VarId> var) {
  for (Pending& p : state)
    if (p.version && p.version->var == var) p.version.reset();
}

// What to insert before a statement: waits for async copies and for tensor stores, then a barrier. kGroup: it is enough that each group of
// warps has a barrier of its own. kCommit: some of the copies belong to no group yet; one ends here, before the wait if there is one. kGlobal: the
// barrier orders global memory, too; where the target's barriers tell memories apart.
struct Need {
  static constexpr int kBarrier = 1, kCopies = 2, kStores = 4, kGroup = 8, kCommit = 16, kGlobal = 32;

  int what = 0;
  int groups = kMaxAge;  // how many of the latest copy groups need not have landed

  bool Has(int kinds) const { return (what & kinds) != 0; }
  bool Meets() const { return Has(kBarrier | kGroup); }
  bool Covers(const Need& other) const { return (what & other.what) == other.what && groups <= other.groups; }
  void Add(const Need& other) {
    what |= other.what;
    groups = std::min(groups, other.groups);
  }
};

// Whether the access is by some of the threads, or by none of them.
inline bool IsBy(const Pending& p, const ir::ThreadRange& threads) { return threads.begin <= p.begin && p.end <= threads.end; }
inline bool AreApart(const Pending& p, const ir::ThreadRange& threads) { return p.end <= threads.begin || threads.end <= p.begin; }

// Until what is under way is done.
inline Need WaitFor(const Pending& p) {
  if (p.age == kDone) return {};
  if (p.age == kStoring) return {Need::kStores};
  return {Need::kCopies | (p.age < 0 ? Need::kCommit : 0), std::max(p.age, 0)};
}

// What an arrival of these threads finds. `by_copies`: copies under way arrive themselves, each group when it is there; then whoever reuses a tile
// waits for its group alone.
struct Arrival {
  Need need;
  // Of the threads' own: copies under way, and accesses that no arrival has released before.
  bool copies = false, accesses = false;
};
inline Arrival ArrivalAfter(const State& state, const ir::ThreadRange& threads, bool by_copies) {
  Arrival arrival;
  for (const Pending& p : state) {
    if (!IsBy(p, threads)) continue;
    const bool arrives = by_copies && p.age < kStoring;
    arrival.copies |= arrives;
    arrival.accesses |= p.age == kDone && !p.released;
    arrival.need.Add(arrives ? Need{p.age < 0 ? Need::kCommit : 0} : WaitFor(p));
  }
  return arrival;
}

// Until all is done: other blocks may overwrite what a copy under way still reads.
inline Need WaitForAll(const State& state) {
  Need need;
  for (const Pending& p : state) need.Add(WaitFor(p));
  return need;
}

// Copies of a group that ends here are followed by one group more; a copy that has been waited for counts as done.
inline void Settle(const Need& need, State& state) {
  for (Pending& p : state) {
    if (need.Has(Need::kCommit) && p.age < kStoring) ++p.age;
    const bool waits = need.Has(p.age == kStoring ? Need::kStores : Need::kCopies);
    if (waits && (p.age == kStoring || p.age >= need.groups)) p.age = kDone;
  }
}

}  // namespace kiln::compiler
