// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/divergence.h"

#include "ir/visit.h"

#include <algorithm>
#include <utility>

namespace kiln::compiler {

using ir::Space;

namespace {

// A round passes on what the round before found. More rounds would take a longer chain of variables against the program's order, which
// nobody writes.
constexpr int kMostRounds = 64;

}  // namespace

Divergence::Divergence(const ir::Module& module, const ir::Block& body) : module_(module) {
  const auto known = [&] { return vars_.size() + locals_.size() + left_.size(); };
  int rounds = 0;
  for (size_t before = SIZE_MAX; before != known();) {
    before = known();
    Visit(body, false);
    if (++rounds == kMostRounds) TakeAllToDiffer(body);
  }
}

void Divergence::TakeAllToDiffer(const ir::Block& body) {
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op)) vars_.insert(let->var);
    if (const auto* alloc = std::get_if<ir::Alloc>(&stmt.op); alloc != nullptr && module_[alloc->buffer].space == Space::kLocal)
      locals_.insert(alloc->buffer);
  });
}

bool Divergence::Differs(ir::ExprId id) const {
  std::vector<ir::ExprId> open{id};
  std::set<ir::ExprId> seen;
  while (!open.empty()) {
    const ir::ExprId next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    const ir::ExprNode& node = module_.exprs[next];
    if (node.op == ir::ExprOp::kVar && (module_.vars[node.ref].kind == ir::VarKind::kThread || vars_.contains(ir::VarId(node.ref)))) return true;
    if (node.op == ir::ExprOp::kLoad && locals_.contains(ir::BufferId(node.ref))) return true;
    open.insert(open.end(), node.Args().begin(), node.Args().end());
  }
  return false;
}

void Divergence::Visit(const ir::Block& block, bool divergent) {
  for (const ir::Stmt& stmt : block) VisitStmt(stmt, divergent);
}

void Divergence::VisitStmt(const ir::Stmt& stmt, bool divergent) {
  std::visit(ir::Overloaded{
                 [&](const ir::For& loop) {
                   const bool outer = std::exchange(in_parallel_, in_parallel_ || loop.kind == ir::LoopKind::kParallel);
                   VisitLoop(loop.body, &loop, std::ranges::any_of(loop.extents, [&](ir::ExprId e) { return Differs(e); }), divergent);
                   in_parallel_ = outer;
                 },
                 [&](const ir::While& loop) { VisitLoop(loop.body, &loop, Differs(loop.cond), divergent); },
                 [&](const ir::If& branch) {
                   const bool differs = Differs(branch.cond);
                   const bool outer = std::exchange(apart_, apart_ || differs);
                   Visit(branch.then_body, divergent || differs);
                   Visit(branch.else_body, divergent || differs);
                   apart_ = outer;
                 },
                 [&](const ir::Break&) { Leave(); },
                 [&](const ir::Continue&) { Leave(); },
                 [&](const ir::Let& let) {
                   if (in_parallel_ || Differs(let.value)) vars_.insert(let.var);
                 },
                 [&](const ir::Store& store) { Write(stmt, store.buffer, store.indices, store.value, divergent); },
                 [&](const ir::Atomic& atomic) { Write(stmt, atomic.buffer, atomic.indices, atomic.value, divergent); },
                 ir::Ignored<ir::Alloc, ir::Assume, ir::Copy, ir::Gemm, ir::AnyElementwise, ir::Reduce, ir::Barrier, ir::AsyncCommit, ir::AsyncWait,
                             ir::RingStep, ir::PairSum, ir::StreamSum>{},
             },
             stmt.op);
}

void Divergence::VisitLoop(const ir::Block& body, const void* loop, bool differs, bool divergent) {
  loops_.push_back(loop);
  differs |= left_.contains(loop);
  const bool outer = std::exchange(apart_, differs);
  Visit(body, divergent || differs);
  apart_ = outer;
  loops_.pop_back();
}

void Divergence::Write(const ir::Stmt& stmt, ir::BufferId buffer, const std::vector<ir::ExprId>& indices, ir::ExprId value, bool divergent) {
  const bool differs = divergent || Differs(value) || std::ranges::any_of(indices, [&](ir::ExprId index) { return Differs(index); });
  if (module_[buffer].space == Space::kLocal && (differs || in_parallel_)) locals_.insert(buffer);
  if (differs && !in_parallel_) of_each_thread_.insert(&stmt);
}

}  // namespace kiln::compiler
