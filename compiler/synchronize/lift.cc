// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/lift.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "compiler/analysis/definitions.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {

void Lift::Run(const ir::Block& block) {
  std::vector<Move> moves;
  for (const ir::Stmt& stmt : block) {
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) Run(branch->then_body), Run(branch->else_body);
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || IsOneStatement(*loop)) continue;
    Run(loop->body);
    Find(stmt, loop->body, moves);
  }
  Try(moves);
}

void Lift::Find(const ir::Stmt& loop, const ir::Block& body, std::vector<Move>& moves) const {
  std::vector<const ir::Stmt*> stmts;
  ir::Walk(body, [&](const ir::Stmt& inner) { stmts.push_back(&inner); });
  const std::unordered_set<const ir::Stmt*> inside(stmts.begin(), stmts.end());
  for (const ir::Stmt* stmt : stmts) {
    if (!needs_.contains(stmt)) continue;
    const auto causes = causes_.find(stmt);
    const auto is_inside = [&](const ir::Stmt* cause) { return inside.contains(cause); };
    if (causes == causes_.end() || std::ranges::none_of(causes->second, is_inside)) moves.push_back({stmt, &loop});
  }
}

// Most kernels can do with all of them, so that few tries are enough for many loops.
void Lift::Try(std::span<const Move> moves) {
  if (moves.empty() || TryTogether(moves) || moves.size() == 1) return;
  Try(moves.first(moves.size() / 2));
  Try(moves.subspan(moves.size() / 2));
}

bool Lift::TryTogether(std::span<const Move> moves) {
  struct Before {
    Need from;
    std::optional<Need> to;
  };
  const auto changed = [&](const Move& move) { visited_.Changed(*move.from), visited_.Changed(*move.to); };
  std::vector<Before> before;
  for (const Move& move : moves) {
    const auto to = needs_.find(move.to);
    before.push_back({needs_.at(move.from), to == needs_.end() ? std::nullopt : std::optional(to->second)});
    needs_.erase(move.from);
    needs_[move.to].Add(before.back().from);
    changed(move);
  }
  if (holds_()) {
    for (const auto& [from, to] : moves) {
      causes_[to].merge(causes_[from]);
      if (std::ranges::find(moved_, to) == moved_.end()) moved_.push_back(to);
    }
    return true;
  }
  for (size_t i = moves.size(); i-- > 0;) {
    before[i].to ? void(needs_[moves[i].to] = *before[i].to) : void(needs_.erase(moves[i].to));
    needs_[moves[i].from] = before[i].from;
    changed(moves[i]);
  }
  return false;
}

void Lift::DropCovered() {
  if (moved_.size() > 1) Drop(moved_);
}

void Lift::Drop(std::span<const ir::Stmt* const> stmts) {
  if (DropTogether(stmts) || stmts.size() == 1) return;
  Drop(stmts.first(stmts.size() / 2));
  Drop(stmts.subspan(stmts.size() / 2));
}

bool Lift::DropTogether(std::span<const ir::Stmt* const> stmts) {
  std::vector<std::pair<const ir::Stmt*, Need>> dropped;
  for (const ir::Stmt* stmt : stmts) {
    const auto need = needs_.find(stmt);
    if (need == needs_.end()) continue;  // it moved on, out of a loop around
    dropped.emplace_back(stmt, need->second);
    needs_.erase(need);
    visited_.Changed(*stmt);
  }
  if (dropped.empty() || holds_()) return true;
  for (const auto& [stmt, need] : dropped) needs_[stmt] = need, visited_.Changed(*stmt);
  return false;
}

}  // namespace kiln::compiler
