// SPDX-License-Identifier: Apache-2.0
//
// What `synchronize` found when it visited a loop. What a loop leaves pending depends on what is pending before it and on the needs of the
// statements within. If a visit met the same of both, its result is taken; otherwise each loop around would double the visits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/synchronize/pending.h"
#include "ir/op.h"

namespace kiln::compiler {

class VisitedLoops {
 public:
  // Once, with the body of the kernel.
  void Find(const ir::Block& body) { Find(body, nullptr); }

  // What the loop leaves pending after `before`; null where that is not known.
  const State* After(const ir::Stmt& loop, const State& before) const {
    const std::vector<Visit>& visits = loops_.at(&loop).visits;
    const auto known = std::ranges::find(visits, before, &Visit::before);
    return known == visits.end() ? nullptr : &known->after;
  }

  void Remember(const ir::Stmt& loop, State before, State after) {
    std::vector<Visit>& visits = loops_.at(&loop).visits;
    if (visits.size() == kMostVisits) visits.erase(visits.begin());
    visits.push_back({std::move(before), std::move(after)});
  }

  // The needs of a statement have changed: what was found of the loops around no longer holds.
  void Changed(const ir::Stmt& stmt) {
    for (Loop* loop = inside_.at(&stmt); loop != nullptr; loop = loop->around) {
      ++loop->changes;
      loop->visits.clear();
    }
  }

  // How often the needs within the loop have changed.
  int64_t Changes(const ir::Stmt& loop) const { return loops_.at(&loop).changes; }

 private:
  static constexpr size_t kMostVisits = 4;  // remembered of a loop
  struct Visit {
    State before, after;
  };
  struct Loop {
    Loop* around = nullptr;
    int64_t changes = 0;
    std::vector<Visit> visits = {};  // with the needs as they are, the latest last
  };

  // `around`: the innermost loop that the block is in. A parallel loop is one statement.
  void Find(const ir::Block& block, Loop* around) {
    for (const ir::Stmt& stmt : block) {
      inside_[&stmt] = around;
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        Find(branch->then_body, around);
        Find(branch->else_body, around);
      } else if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (loop->kind != ir::LoopKind::kParallel) Find(loop->body, &loops_.try_emplace(&stmt, Loop{around}).first->second);
      } else if (const auto* repeat = std::get_if<ir::While>(&stmt.op)) {
        Find(repeat->body, &loops_.try_emplace(&stmt, Loop{around}).first->second);
      }
    }
  }

  std::unordered_map<const ir::Stmt*, Loop*> inside_;  // the innermost loop around a statement
  std::unordered_map<const ir::Stmt*, Loop> loops_;    // by their statements
};

}  // namespace kiln::compiler
