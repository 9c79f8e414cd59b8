// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/producer_slice.h"

#include <ranges>

#include "compiler/analysis/access.h"
#include "compiler/analysis/leaves.h"
#include "ir/visit.h"

namespace kiln::compiler {
ProducerSlice::ProducerSlice(const ir::Module& module, const ir::Kernel& kernel, const std::function<bool(const ir::Stmt&)>& fills)
    : module_(module), fills_(fills) {
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module, stmt))
      if (access.write) written_.insert(access.buffer);
  });
  Visit(kernel.body);
}

// Walks backwards, since a let stands before its uses.
bool ProducerSlice::Visit(const ir::Block& block) {
  bool any = false;
  for (const ir::Stmt& stmt : std::views::reverse(block)) {
    if (!VisitStmt(stmt)) continue;
    runs_.insert(&stmt);
    Need(stmt);
    any = true;
  }
  return any;
}

bool ProducerSlice::VisitStmt(const ir::Stmt& stmt) {
  if (fills_(stmt)) return true;
  if (const auto* let = std::get_if<ir::Let>(&stmt.op)) return needed_.contains(let->var);
  if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
    const bool otherwise = Visit(branch->else_body);
    return Visit(branch->then_body) || otherwise;
  }
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  const auto* repeat = std::get_if<ir::While>(&stmt.op);
  if (repeat == nullptr && (loop == nullptr || loop->kind == ir::LoopKind::kParallel)) return false;
  const ir::Block& body = loop != nullptr ? loop->body : repeat->body;
  const bool runs = Visit(body);
  // The number of such a loop's iterations depends on the statements in it.
  if (runs && (repeat != nullptr || LeavesLoop(body))) sound_ = false;
  return runs;
}

void ProducerSlice::Need(const ir::Stmt& stmt) {
  std::set<ir::ExprId> seen;
  const auto need = [&](auto& self, ir::ExprId id) -> void {
    if (!seen.insert(id).second) return;
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ir::ExprOp::kVar) {
      needed_.insert(ir::VarId(node.ref));
      if (module_.vars[node.ref].kind == ir::VarKind::kThread) sound_ = false;
    }
    if (node.op == ir::ExprOp::kLoad) {
      const ir::BufferId buffer{node.ref};
      if (module_[buffer].space != ir::Space::kGlobal || written_.contains(buffer)) sound_ = false;
    }
    for (ir::ExprId arg : node.Args()) self(self, arg);
  };
  // The ring decides where a copy leaves its tile, so the destination's offsets are not needed.
  if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) {
    for (ir::ExprId offset : copy->src.offsets) need(need, offset);
  } else {
    ir::ForEachExpr(stmt.op, [&](ir::ExprId id) { need(need, id); });
  }
}

bool FillsRing(const ir::Stmt& stmt) {
  if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) return copy->plan && copy->plan->ring;
  const auto* step = std::get_if<ir::RingStep>(&stmt.op);
  return step != nullptr && (step->action == ir::RingAction::kAcquire || step->action == ir::RingAction::kAdvance);
}

}  // namespace kiln::compiler
