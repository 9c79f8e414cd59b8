// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/added_boxes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/facts.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;

bool IsAmong(const std::vector<ir::VarId>& vars, ir::VarId var) { return std::ranges::find(vars, var) != vars.end(); }

// Whether the index is the variable and something that goes with none of the loop's.
bool MovesAlone(ir::Module& module, const Linear& index, ir::VarId var, const std::vector<ir::VarId>& vars) {
  const std::set<ir::VarId> all(vars.begin(), vars.end());
  return index.Coefficient(module.VarRef(var)) == 1 && std::ranges::all_of(index.terms, [&](const auto& term) {
           return ExprId(term.first) == module.VarRef(var) || !ContainsVar(module.exprs, ExprId(term.first), all);
         });
}

}  // namespace

const ir::Atomic* AddsTile(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->vars.size() != 2 || loop->body.size() != 1) return nullptr;
  const auto* atomic = std::get_if<ir::Atomic>(&loop->body[0].op);
  const bool plain = atomic != nullptr && atomic->kind == ir::AtomicKind::kAdd && !atomic->old && atomic->order == ir::MemoryOrder::kRelaxed;
  return plain ? atomic : nullptr;
}

std::optional<AddedBox> BoxOf(ir::Module& module, const ir::For& loop, const ir::Atomic& atomic) {
  AddedBox added{{atomic.buffer, atomic.indices, std::vector<int64_t>(atomic.indices.size(), 1)}, {}};
  for (size_t d = 0; d < atomic.indices.size(); ++d) {
    const Linear index = LinearOf(module.exprs, atomic.indices[d]);
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      const ir::VarId var = loop.vars[v];
      if (!ContainsVar(module.exprs, atomic.indices[d], std::set{var})) continue;
      if (!MovesAlone(module, index, var, loop.vars) || added.box.extents[d] != 1 || IsAmong(added.vars, var)) return std::nullopt;
      ExprId& offset = added.box.offsets[d];
      offset = module.exprs.Substitute(offset, var, module.exprs.Int(0, module[var].dtype));
      added.box.extents[d] = module.exprs.ConstInt(loop.extents[v]).value_or(1);
      added.vars.push_back(var);
    }
  }
  return added.vars.size() == loop.vars.size() ? std::optional(std::move(added)) : std::nullopt;
}

bool TakesPartsFromKnownPlaces(const ir::Module& module, const ir::For& loop, ExprId value) {
  std::vector<Access> loads;
  CollectLoads(module.exprs, value, loads);
  const auto is_own = [&](const auto& term) {
    const ir::ExprNode& node = module.exprs[ExprId(term.first)];
    return node.op == ir::ExprOp::kVar && IsAmong(loop.vars, ir::VarId(node.ref));
  };
  return std::ranges::all_of(loads, [&](const Access& load) {
    return module[load.buffer].space != ir::Space::kFragment ||
           std::ranges::all_of(load.indices, [&](ExprId index) { return std::ranges::all_of(LinearOf(module.exprs, index).terms, is_own); });
  });
}

bool OrdersMemory(const ir::Kernel& kernel) {
  bool orders = false;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
    orders |= atomic != nullptr && atomic->order != ir::MemoryOrder::kRelaxed;
  });
  return orders;
}

}  // namespace kiln::compiler
