// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/division.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Stmt;

// The buffer that the statement writes as a whole, if it is one that a statement can.
std::optional<BufferId> WrittenWhole(const ir::Module& module, const Stmt& stmt) {
  const auto whole = [&](const ir::Region& region) {
    const bool is_whole = module[region.buffer].space != ir::Space::kGlobal && region.extents == module.ShapeOf(region.buffer);
    return is_whole ? std::optional(region.buffer) : std::nullopt;
  };
  if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) return gemm->clear_accum ? whole(gemm->c) : std::nullopt;
  if (const auto* fill = std::get_if<ir::Fill>(&stmt.op)) return whole(fill->dst);
  if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) return whole(copy->dst);
  if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) return reduce->clear ? whole(reduce->dst) : std::nullopt;
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return std::nullopt;
  const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
  if (store == nullptr || module[store->buffer].space == ir::Space::kGlobal || !IsOwnElement(module, *loop, store->indices) ||
      !CoversElements(module, *loop, store->buffer))
    return std::nullopt;
  return store->buffer;
}

}  // namespace

Touches TouchesOf(const ir::Module& module, const Stmt& stmt) {
  Touches touches;
  ir::WalkWithin(stmt, [&](const Stmt& inner) {
    for (const Access& access : AccessesOf(module, inner)) (access.write ? touches.writes : touches.reads).insert(access.buffer);
  });
  const std::optional<BufferId> whole = WrittenWhole(module, stmt);
  if (!whole) return touches;
  if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op); gemm != nullptr && gemm->a.buffer != *whole) touches.reads.erase(*whole);
  if (!touches.reads.contains(*whole)) touches.whole.insert(*whole);
  return touches;
}

std::set<BufferId> Carried(const std::vector<Touches>& statements) {
  std::set<BufferId> seen, carried, written;
  for (const Touches& touches : statements) written.insert(touches.writes.begin(), touches.writes.end());
  for (const Touches& touches : statements) {
    for (const BufferId id : written)
      if (touches.Has(id) && seen.insert(id).second && !touches.whole.contains(id)) carried.insert(id);
  }
  return carried;
}

Groups::Groups(const std::vector<Touches>& statements) : of_(statements.size()) {
  std::iota(of_.begin(), of_.end(), size_t{0});
  const auto join = [&](size_t a, size_t b) {
    const size_t from = std::max(of_[a], of_[b]), to = std::min(of_[a], of_[b]);
    std::ranges::replace(of_, from, to);
  };
  const std::set<BufferId> carried = Carried(statements);
  for (size_t b = 0; b < statements.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const bool both_write = std::ranges::any_of(statements[a].writes, [&](BufferId id) { return statements[b].writes.contains(id); });
      const bool circle = std::ranges::any_of(carried, [&](BufferId id) { return statements[a].Has(id) && statements[b].Has(id); });
      if (both_write || circle) join(a, b);
    }
  }
  std::map<size_t, size_t> numbers;
  for (size_t& group : of_) group = numbers.try_emplace(group, numbers.size()).first->second;
  before_.resize(numbers.size());
  for (size_t a = 0; a < statements.size(); ++a) {
    for (size_t b = 0; b < statements.size(); ++b) {
      const bool feeds = std::ranges::any_of(statements[a].writes, [&](BufferId id) { return statements[b].reads.contains(id); });
      if (feeds && of_[a] != of_[b]) before_[of_[a]].insert(of_[b]);
    }
  }
}

bool Groups::MayBeLast(uint32_t set) const {
  for (size_t group = 0; group < count(); ++group) {
    if ((set >> group & 1) == 0) continue;
    if (std::ranges::any_of(before_[group], [&](size_t after) { return (set >> after & 1) == 0; })) return false;
  }
  return true;
}

}  // namespace kiln::compiler
