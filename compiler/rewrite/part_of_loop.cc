// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/part_of_loop.h"

#include <algorithm>
#include <vector>

#include "compiler/rewrite/repeat.h"
#include "compiler/rewrite/versions.h"

namespace kiln::compiler {

bool ComputesInPlace(const ir::Module& module, const ir::Stmt& stmt, ir::BufferId tile) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel) return false;
  for (size_t v = 0; v < loop->vars.size(); ++v) {
    const auto extent = module.exprs.ConstInt(loop->extents[v]);
    if (!extent || v >= module[tile].shape.size() || module.exprs.ConstInt(module[tile].shape[v]) != extent) return false;
  }
  const auto is_own = [&](std::span<const ir::ExprId> indices) {
    return std::ranges::equal(indices, loop->vars, [&](ir::ExprId index, ir::VarId var) {
      const ir::ExprNode& node = module.exprs[index];
      return node.op == ir::ExprOp::kVar && ir::VarId(node.ref) == var;
    });
  };
  return std::ranges::all_of(loop->body, [&](const ir::Stmt& inner) {
    const auto* store = std::get_if<ir::Store>(&inner.op);
    if (store == nullptr || store->buffer != tile || !is_own(store->indices)) return false;
    return std::ranges::all_of(ir::LoadsOf(module.exprs, store->value), [&](ir::ExprId load) {
      const ir::ExprNode& node = module.exprs[load];
      return ir::BufferId(node.ref) != tile || is_own(node.Args());
    });
  });
}

ir::Stmt PartOfLoop(ir::Module& module, const ir::Stmt& loop, size_t dim, int64_t first, int64_t extent) {
  ir::Stmt part = std::move(Repeated(module, {loop}).front());
  auto& own = std::get<ir::For>(part.op);
  const ir::DType type = module[own.vars[dim]].dtype;
  own.extents[dim] = module.exprs.Int(extent, type);
  if (first != 0) Substitute(module, own.body, own.vars[dim], module.exprs.Add(module.VarRef(own.vars[dim]), module.exprs.Int(first, type)));
  return part;
}

}  // namespace kiln::compiler
