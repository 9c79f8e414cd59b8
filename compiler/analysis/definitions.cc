// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/definitions.h"

#include <algorithm>
#include <ranges>

#include "compiler/analysis/access.h"
#include "compiler/analysis/leaves.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

bool SetsToZero(const ir::Module& module, const ir::Stmt& stmt, ir::BufferId buffer) {
  if (const auto* fill = std::get_if<ir::Fill>(&stmt.op))
    return fill->dst.buffer == buffer && fill->dst.extents == module.ShapeOf(buffer) && module.exprs.IsZero(fill->value);
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1 || !CoversElements(module, *loop, buffer)) return false;
  const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
  return store != nullptr && store->buffer == buffer && IsOwnElement(module, *loop, store->indices) && module.exprs.IsZero(store->value);
}

}  // namespace

AccessCounts CountAllAccesses(const ir::Module& module, const ir::Block& block) {
  AccessCounts counts;
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && IsOneStatement(*loop)) return;  // Walk visits its statements one by one
    for (const Access& access : AccessesOf(module, stmt)) ++(access.write ? counts[access.buffer].writes : counts[access.buffer].reads);
  });
  return counts;
}

bool IsOwnElement(const ir::Module& module, const ir::For& loop, std::span<const ir::ExprId> indices) {
  return std::ranges::equal(indices, loop.vars, [&](ir::ExprId index, ir::VarId var) {
    const ir::ExprNode& node = module.exprs[index];
    return node.op == ir::ExprOp::kVar && ir::VarId(node.ref) == var;
  });
}

bool CoversElements(const ir::Module& module, const ir::For& loop, ir::BufferId buffer) {
  return std::ranges::equal(loop.extents, module.ShapeOf(buffer),
                            [&](ir::ExprId extent, int64_t size) { return module.exprs.IsConst(extent, size); });
}

std::set<ir::VarId> BoundIn(const ir::For& loop) {
  std::set<ir::VarId> bound(loop.vars.begin(), loop.vars.end());
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op)) bound.insert(let->var);
    if (const auto* inner = std::get_if<ir::For>(&stmt.op)) bound.insert(inner->vars.begin(), inner->vars.end());
  });
  return bound;
}

const ir::Stmt* ZeroedBy(const ir::Module& module, std::span<const ir::Stmt> before, ir::BufferId buffer) {
  for (const ir::Stmt& stmt : std::views::reverse(before)) {
    if (HoldsExit<ir::Break, ir::Continue>(std::span(&stmt, 1))) return nullptr;
    if (CountAccesses(module, stmt, buffer) > 0) return SetsToZero(module, stmt, buffer) ? &stmt : nullptr;
  }
  return nullptr;
}

}  // namespace kiln::compiler
