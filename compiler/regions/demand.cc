// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/demand.h"

#include <algorithm>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/regions/sums.h"
#include "ir/visit.h"

namespace kiln::compiler {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::VarId;

class Demand::Query {
 public:
  Query(ir::Module& module, const ir::Kernel& kernel, const Lets& lets, ExprId x, VarId var, ExprId bound)
      : module_(module), kernel_(kernel), lets_(lets), sums_(module, /*canonical=*/true), x_(x), var_(var), bound_(bound) {}

  bool IsBelow(BufferId tile, size_t dim) {
    if (!seen_.emplace(tile, dim).second) return true;  // what is under way decides
    return IsBelow(kernel_.body, {tile, dim});
  }

  // Whether nothing that an iteration of the variable's loop made of the tile is left to another one.
  bool StaysIn(VarId loop_var) {
    const ir::Block* body = nullptr;
    ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && std::ranges::find(loop->vars, loop_var) != loop->vars.end()) body = &loop->body;
    });
    return body != nullptr && std::ranges::all_of(seen_, [&](const auto& place) {
             return Reads(*body, place.first) == Reads(kernel_.body, place.first) && StartsNew(*body, place.first);
           });
  }

 private:
  int64_t Reads(const ir::Block& block, BufferId buffer) const {
    const AccessCounts counts = CountAllAccesses(module_, block);
    const auto count = counts.find(buffer);
    return count == counts.end() ? 0 : count->second.reads;
  }

  // Whether a run of the statements writes the whole buffer before anything reads it.
  bool StartsNew(const ir::Block& block, BufferId buffer) const {
    for (const ir::Stmt& stmt : block) {
      if (CountAccesses(module_, stmt, buffer) == 0) continue;
      if (SetsAll(stmt, buffer)) return true;
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) return false;
      if (AccessesTo(stmt, buffer) != 0) return false;
      bool is_new = true;  // what is accessed is within bodies
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) { is_new = is_new && StartsNew(body, buffer); });
      if (!is_new) return false;
    }
    return true;
  }

  // By the statement itself.
  int64_t AccessesTo(const ir::Stmt& stmt, BufferId buffer) const { return std::ranges::count(AccessesOf(module_, stmt), buffer, &Access::buffer); }

  bool SetsAll(const ir::Stmt& stmt, BufferId buffer) const {
    const auto is_whole = [&](const ir::Region& region) { return region.buffer == buffer && region.extents == module_.ShapeOf(buffer); };
    if (const auto* fill = std::get_if<ir::Fill>(&stmt.op)) return is_whole(fill->dst);
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) return is_whole(copy->dst) && copy->src.buffer != buffer;
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return false;
    const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
    return store != nullptr && store->buffer == buffer && AccessesTo(stmt, buffer) == 1 && IsOwnElement(module_, *loop, store->indices) &&
           CoversElements(module_, *loop, buffer);
  }

  struct Place {
    BufferId tile;
    size_t dim;
  };

  bool IsBelow(const ir::Block& block, const Place& place) {
    return std::ranges::all_of(block, [&](const ir::Stmt& stmt) { return IsBelow(stmt, place); });
  }

  bool IsBelow(const ir::Stmt& stmt, const Place& place) {
    if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind == ir::LoopKind::kParallel) {
      return IsBelowIn(loop->body, *loop, {}, place);
    }
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) return IsBelow(*gemm, place);
    const bool reads =
        std::ranges::any_of(AccessesOf(module_, stmt), [&](const Access& access) { return !access.write && access.buffer == place.tile; });
    bool below = !reads;
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) { below = below && IsBelow(body, place); });
    return below;
  }

  // Rows of a become rows of c, columns of b columns of c. Along k they are added up.
  bool IsBelow(const ir::Gemm& gemm, const Place& place) {
    const auto is_whole = [&](const ir::Region& region) { return region.extents == module_.ShapeOf(region.buffer); };
    if (gemm.metadata && gemm.metadata->buffer == place.tile) return false;
    for (const auto& [region, kept, to] : {std::tuple(&gemm.a, gemm.transpose_a ? 1u : 0u, 0u), {&gemm.b, gemm.transpose_b ? 0u : 1u, 1u}}) {
      if (region->buffer != place.tile) continue;
      if (!is_whole(*region) || !is_whole(gemm.c) || region->extents.size() != 2 || gemm.c.extents.size() != 2 || place.dim != kept) return false;
      if (!IsBelow(gemm.c.buffer, to)) return false;
    }
    return true;
  }

  // Within a parallel loop, under conditions.
  bool IsBelowIn(const ir::Block& block, const ir::For& loop, const std::vector<ExprId>& conditions, const Place& place) {
    return std::ranges::all_of(block, [&](const ir::Stmt& stmt) { return IsBelowIn(stmt, loop, conditions, place); });
  }

  bool IsBelowIn(const ir::Stmt& stmt, const ir::For& loop, const std::vector<ExprId>& conditions, const Place& place) {
    if (const auto* store = std::get_if<ir::Store>(&stmt.op)) return IsBelow(*store, loop, conditions, place);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
      if (Reads(branch->cond, place)) return false;
      std::vector<ExprId> inner = conditions;
      Split(lets_.Expanded(branch->cond), inner);
      return IsBelowIn(branch->then_body, loop, inner, place) && IsBelowIn(branch->else_body, loop, conditions, place);
    }
    return CountAccesses(module_, stmt, place.tile) == 0;
  }

  bool IsBelow(const ir::Store& store, const ir::For& loop, const std::vector<ExprId>& conditions, const Place& place) {
    if (std::ranges::any_of(store.indices, [&](ExprId index) { return Reads(index, place); })) return false;
    std::vector<Access> loads;
    CollectLoads(module_.exprs, store.value, loads);
    for (const Access& load : loads) {
      if (load.mask && Reads(*load.mask, place)) return false;
      if (load.buffer != place.tile) continue;
      const std::optional<VarId> row = VarAt(load.indices[place.dim], loop);
      if (!row || !GoesBelow(store, *row, conditions)) return false;
    }
    return true;
  }

  // Whether what iterations with `row` store is wanted only below.
  bool GoesBelow(const ir::Store& store, VarId row, const std::vector<ExprId>& conditions) {
    if (module_[store.buffer].space == ir::Space::kGlobal) {
      return std::ranges::any_of(conditions, [&](ExprId condition) { return Says(condition, row); });
    }
    for (size_t d = 0; d < store.indices.size(); ++d) {
      if (module_.exprs[store.indices[d]].op == ExprOp::kVar && module_.exprs[store.indices[d]].ref == ir::Index(row))
        return IsBelow(store.buffer, d);
    }
    return false;
  }

  // Whether the condition is x(row) < bound.
  bool Says(ExprId condition, VarId row) {
    const ir::ExprNode node = module_.exprs[condition];
    if (node.op != ExprOp::kLt && node.op != ExprOp::kGt) return false;
    const bool turned = node.op == ExprOp::kGt;
    const ExprId x = module_.exprs.Substitute(x_, var_, module_.VarRef(row));
    const std::optional<Sum> left = sums_.Of(node.args[turned ? 1 : 0]), right = sums_.Of(node.args[turned ? 0 : 1]);
    const std::optional<Sum> wanted = sums_.Of(x), bound = sums_.Of(bound_);
    return left && right && wanted && bound && Minus(*left, *right) == Minus(*wanted, *bound);
  }

  void Split(ExprId condition, std::vector<ExprId>& parts) const {
    const ir::ExprNode& node = module_.exprs[condition];
    if (node.op != ExprOp::kAnd && node.op != ExprOp::kBitAnd) return parts.push_back(condition);
    Split(node.args[0], parts);
    Split(node.args[1], parts);
  }

  std::optional<VarId> VarAt(ExprId index, const ir::For& loop) const {
    const ir::ExprNode& node = module_.exprs[index];
    const bool is = node.op == ExprOp::kVar && std::ranges::find(loop.vars, VarId(node.ref)) != loop.vars.end();
    return is ? std::optional(VarId(node.ref)) : std::nullopt;
  }

  bool Reads(ExprId id, const Place& place) const {
    std::vector<Access> loads;
    CollectLoads(module_.exprs, id, loads);
    return std::ranges::any_of(loads, [&](const Access& load) { return load.buffer == place.tile; });
  }

  ir::Module& module_;
  const ir::Kernel& kernel_;
  const Lets& lets_;
  Sums sums_;
  const ExprId x_;
  const VarId var_;
  const ExprId bound_;
  std::set<std::pair<BufferId, size_t>> seen_;
};

bool Demand::IsBelow(BufferId tile, size_t dim, ExprId x, VarId var, ExprId bound) {
  // Sums may carry what one iteration of a loop around them loaded to the stores of another, where x is another.
  std::vector<VarId> loops;
  const bool is_unknown = Contains(module_.exprs, x, [&](ExprId part) {
    const ir::ExprNode& node = module_.exprs[part];
    if (node.op == ExprOp::kLoad) return true;
    if (node.op != ExprOp::kVar || VarId(node.ref) == var) return false;
    const ir::VarKind kind = module_.vars[node.ref].kind;
    if (kind == ir::VarKind::kLoop) loops.push_back(VarId(node.ref));
    return kind == ir::VarKind::kLet;
  });
  if (is_unknown) return false;
  Query query(module_, kernel_, lets_, x, var, bound);
  return query.IsBelow(tile, dim) && std::ranges::all_of(loops, [&](VarId loop) { return query.StaysIn(loop); });
}

}  // namespace kiln::compiler
