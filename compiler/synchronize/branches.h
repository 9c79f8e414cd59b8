// SPDX-License-Identifier: Apache-2.0
//
// Branches that only some threads enter: what they may access first, and what the program's own barriers make of them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/synchronize/pending.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Who does accesses. `branch`: the outermost branch around them, within the current scope, that only some threads enter; they meet in it.
struct Comers {
  ir::ThreadRange threads;
  std::optional<ir::ThreadRange> branch = {};

  bool IsSame(const Comers& other) const {
    return threads.IsSame(other.threads) && branch.has_value() == other.branch.has_value() && (!branch || branch->IsSame(*other.branch));
  }
};
struct Coming {
  Comers who;
  std::vector<Access> accesses;
};

// The accesses of a statement, and those that the blocks within it may make before their first own barrier: to be safe, all of them. `signals`:
// the program has barriers of its own; else all are by `threads`.
std::vector<Coming> FirstAccesses(const ir::Stmt& stmt, const ir::ThreadRange& threads, bool signals,
                                  const std::function<const std::vector<Access>&(const ir::Stmt&)>& accesses_of);

// Where some of the threads that come to the branch arrive in it at a barrier of the program, for all: these must have done what is pending.
// nullopt: none arrive.
std::optional<Need> NeedOfArrivals(const ir::If& branch, bool by_memory, const State& pending);

// Marks what the threads of a branch did in it, if they wait in it for others.
void NoteAwaiting(const ir::Block& body, const ir::ThreadRange& threads, State& pending);

// What is written in one branch, with no arrival since, and used in another, whose threads run beside: by which statements.
using Unreleased = std::map<ir::BufferId, std::pair<const ir::Stmt*, const ir::Stmt*>>;
// Of several writes to a buffer the first in the program is kept.
void NoteUnreleased(Unreleased& unreleased, const Pending& write, const ir::Stmt& use);
void WarnOfUnreleased(const ir::Module& module, const Unreleased& unreleased, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
