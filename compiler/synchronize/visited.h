// SPDX-License-Identifier: Apache-2.0
//
// What `synchronize` found when it visited a loop, or a part of a long block. What either leaves pending depends on what is pending before it
// and on the needs of the statements within. If a visit met the same of both, its result is taken. Otherwise each loop around would double the
// visits, and whoever tries to do without one need would visit the whole kernel again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/analysis/definitions.h"
#include "compiler/analysis/leaves.h"
#include "compiler/synchronize/pending.h"
#include "ir/op.h"

namespace kiln::compiler {

// The analysis visits a loop until nothing changes, and every visit repeats this for the loops within. Beyond so many visits of statements, or
// so many of each, the kernel is refused: only loops nested a dozen deep come that far.
constexpr int64_t kMostVisited = 2'000'000, kMostOfEach = 100;
// From this part of them on, a loop is visited with all that was ever pending before it. Some barriers may then be superfluous, until it has tried
// to do without each.
constexpr int64_t kPartExact = 10;
// After that, it tries to do without each barrier in turn, for at most so many visits. A barrier that it did not get to try is at worst
// superfluous.
constexpr int64_t kMostTried = 2'000'000;

class Visited {
 public:
  using Stmts = std::span<const ir::Stmt>;

  // A loop, or neighbours in a block.
  class Piece {
   public:
    const std::vector<Piece*>& parts() const { return parts_; }  // of neighbours, if they are many
    Stmts stmts() const { return stmts_; }

   private:
    friend class Visited;
    struct Visit {
      State before, after;
    };
    Piece* around_ = nullptr;
    Stmts stmts_ = {};
    std::vector<Piece*> parts_ = {};
    bool leaves_ = false;             // neighbours that leave the loop around: a visit of them does more than its result tells
    int64_t changes_ = 0;             // of the needs within
    std::vector<Visit> visits_ = {};  // with the needs as they are, the latest last
    State before_ = {};               // a loop: all that was pending before it (see AddEarlier)
    int64_t of_changes_ = -1;         // the changes of all needs that `before_` has seen
  };

  // Once, with the body of the kernel.
  void Find(const ir::Block& body) { Find(body, nullptr); }
  int64_t Statements() const { return int64_t(inside_.size()); }  // those of parallel loops are part of these

  Piece& Loop(const ir::Stmt& loop) { return *loops_.at(&loop); }
  // The block's parts; null where it is short.
  const Piece* Parts(const ir::Block& block) const {
    const auto long_one = blocks_.find(&block);
    return long_one == blocks_.end() ? nullptr : long_one->second;
  }

  // Visits a piece, unless it is known what it leaves. `visit` says whether it came to its end.
  template <typename Do>
  void Again(Piece& piece, State& state, Do&& visit) {
    if (const State* after = After(piece, state)) return void(state = *after);
    State before = state;
    const int64_t changes = piece.changes_;
    if (visit() && piece.changes_ == changes) Remember(piece, std::move(before), state);
  }

  // Adds what was pending before the loop in earlier visits with the same needs. Loops around it visit it with more and more; visited with all of
  // it from the first, it leaves the same each time, and the visits no longer multiply with each loop around.
  void AddEarlier(Piece& loop, State& state) {
    if (loop.of_changes_ != changes_) loop.before_.clear();
    loop.of_changes_ = changes_;
    state.insert(state.end(), loop.before_.begin(), loop.before_.end());
    Normalize(state);
    loop.before_ = state;
  }

  // The needs of a statement have changed: what was found of the pieces around no longer holds.
  void Changed(const ir::Stmt& stmt) {
    ++changes_;
    for (Piece* piece = inside_.at(&stmt); piece != nullptr; piece = piece->around_) {
      ++piece->changes_;
      piece->visits_.clear();
    }
  }

 private:
  static constexpr size_t kMostVisits = 4, kMostOfPart = 2;  // remembered of a loop, and of neighbours
  static constexpr size_t kMostRemembered = 4'000'000;       // accesses in all of them; a bound of memory
  static constexpr size_t kPart = 16, kParts = 8;            // statements of the smallest parts; parts of a larger one

  static const State* After(const Piece& piece, const State& before) {
    const auto known = std::ranges::find(piece.visits_, before, &Piece::Visit::before);
    return known == piece.visits_.end() ? nullptr : &known->after;
  }

  void Remember(Piece& piece, State before, State after) {
    if (piece.leaves_) return;
    if (piece.visits_.size() == (piece.stmts_.empty() ? kMostVisits : kMostOfPart)) piece.visits_.erase(piece.visits_.begin());
    remembered_ += before.size() + after.size();
    piece.visits_.push_back({std::move(before), std::move(after)});
    if (remembered_ > kMostRemembered) ForgetAll();
  }

  // `around`: the innermost piece that the block is in. A parallel loop is one statement.
  void Find(const ir::Block& block, Piece* around) {
    if (block.size() <= 2 * kPart) return FindWithin(block, around);
    blocks_[&block] = &Divided(block, around);
  }

  Piece& Divided(Stmts stmts, Piece* around) {
    Piece& piece = Add(around);
    piece.stmts_ = stmts;
    piece.leaves_ = HoldsExit<ir::Break, ir::Continue>(stmts);
    if (stmts.size() <= kPart) return FindWithin(stmts, &piece), piece;
    const size_t size = std::max(kPart, (stmts.size() + kParts - 1) / kParts);
    for (size_t begin = 0; begin < stmts.size();) {
      size_t end = std::min(begin + size, stmts.size());
      while (end < stmts.size() && std::holds_alternative<ir::Reduce>(stmts[end].op)) ++end;  // several may exchange in one step
      if (begin == 0 && end == stmts.size()) return FindWithin(stmts, &piece), piece;
      piece.parts_.push_back(&Divided(stmts.subspan(begin, end - begin), &piece));
      begin = end;
    }
    return piece;
  }

  void FindWithin(Stmts stmts, Piece* around) {
    for (const ir::Stmt& stmt : stmts) {
      inside_[&stmt] = around;
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        Find(branch->then_body, around);
        Find(branch->else_body, around);
      } else if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (!IsOneStatement(*loop)) Find(loop->body, loops_[&stmt] = &Add(around));
      } else if (const auto* repeat = std::get_if<ir::While>(&stmt.op)) {
        Find(repeat->body, loops_[&stmt] = &Add(around));
      }
    }
  }

  Piece& Add(Piece* around) {
    pieces_.emplace_back().around_ = around;
    return pieces_.back();
  }

  void ForgetAll() {
    for (Piece& piece : pieces_) piece.visits_.clear();
    remembered_ = 0;
  }

  std::list<Piece> pieces_;
  std::unordered_map<const ir::Stmt*, Piece*> inside_;   // the innermost piece around a statement
  std::unordered_map<const ir::Stmt*, Piece*> loops_;    // by their statements
  std::unordered_map<const ir::Block*, Piece*> blocks_;  // the long ones
  size_t remembered_ = 0;                                // that were, since all were forgotten
  int64_t changes_ = 0;                                  // of all needs
};

}  // namespace kiln::compiler
