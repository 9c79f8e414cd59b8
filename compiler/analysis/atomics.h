// SPDX-License-Identifier: Apache-2.0
//
// What order a parallel loop's changes of memory ask for.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/access.h"
#include "ir/module.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {

// The order of all changes that the loop makes of global memory, if it does nothing else there: its iterations are in no order, so that what the changes
// order is what stands before and behind the loop. kRelaxed: there are none, or each has its own, as those have that are in one
// order with the changes of all threads.
inline ir::MemoryOrder SharedOrder(const ir::Module& module, const ir::For& loop) {
  std::optional<ir::MemoryOrder> order;
  bool shared = true;
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op)) {
      const bool changes = atomic->kind != ir::AtomicKind::kLoad && atomic->kind != ir::AtomicKind::kStore &&
                           atomic->kind != ir::AtomicKind::kExchange && atomic->kind != ir::AtomicKind::kCompareExchange;
      shared &= changes && !atomic->block && module[atomic->buffer].space == ir::Space::kGlobal && order.value_or(atomic->order) == atomic->order;
      order = atomic->order;
    } else if (const auto* store = std::get_if<ir::Store>(&stmt.op)) {
      shared &= module[store->buffer].space != ir::Space::kGlobal;
    } else {
      shared &= std::holds_alternative<ir::If>(stmt.op) || std::holds_alternative<ir::Let>(stmt.op);
    }
    std::vector<Access> loads;
    ir::ForEachExpr(stmt.op, [&](ir::ExprId expr) { CollectLoads(module.exprs, expr, loads); });
    for (const Access& load : loads) shared &= module[load.buffer].space != ir::Space::kGlobal;
  });
  return shared && order != ir::MemoryOrder::kSeqCst ? order.value_or(ir::MemoryOrder::kRelaxed) : ir::MemoryOrder::kRelaxed;
}

}  // namespace kiln::compiler
