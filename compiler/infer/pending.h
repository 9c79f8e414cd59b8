// SPDX-License-Identifier: Apache-2.0
//
// What `synchronize` keeps of the accesses before a statement, and what it finds the statement to need.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/analysis/iterations.h"
#include "ir/op.h"

namespace kiln::compiler {

// An access since the last barrier. `age` of an async write: −1 issued, n committed with n groups behind it; kDone: landed, or an
// ordinary access; kStoring: a tile that a tensor store may still read.
inline constexpr int kDone = 1 << 20;
inline constexpr int kStoring = kDone - 1;
inline constexpr int kMaxAge = 64;  // no wait looks further back
struct Pending {
  ir::BufferId buffer;
  bool write;
  std::optional<Version> version;
  int age;
  const ir::Stmt* stmt;
  bool within_group = false;  // a barrier of each group has passed: only other buffers on the same bytes may still meet it
  int met = 0;  // of the branches with threads of their own around: the first of which a barrier has passed; 0: none
  auto operator<=>(const Pending&) const = default;
};
using State = std::vector<Pending>;  // sorted, unique

// Most often a few accesses came behind sorted ones.
inline void Normalize(State& state) {
  const auto added = std::ranges::is_sorted_until(state);
  std::ranges::sort(added, state.end());
  std::ranges::inplace_merge(state, added);
  state.erase(std::ranges::unique(state).begin(), state.end());
}

// What to insert before a statement: a barrier, and before it waits for async copies, for all tensor stores.
// kGroup: a barrier of each group of warps for itself is enough. kCommit: some of the copies belong to no group yet.
struct Need {
  static constexpr int kBarrier = 1, kCopies = 2, kStores = 4, kGroup = 8, kCommit = 16;

  int what = 0;
  int groups = kMaxAge;  // of copies that may go on; the latest ones

  bool Has(int kinds) const { return (what & kinds) != 0; }
  bool Meets() const { return Has(kBarrier | kGroup); }
  bool Covers(const Need& other) const { return (what & other.what) == other.what && groups <= other.groups; }
  void Add(const Need& other) {
    what |= other.what;
    groups = std::min(groups, other.groups);
  }
};

}  // namespace kiln::compiler
