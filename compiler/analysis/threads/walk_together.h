// SPDX-License-Identifier: Apache-2.0
//
// Statements in the order of the program, with what holds where they stand and the threads that come to them.
#pragma once

#include <utility>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/thread_range.h"

namespace kiln::compiler {

// Calls `visit(stmt, facts, threads)` for every statement outside of parallel loops, before the statements inside it; it may change `stmt`. The
// statements of a parallel loop are its iterations', which no threads come to together.
template <typename Visit>
void WalkTogether(ir::Block& block, Facts facts, const ir::ThreadRange& threads, const Visit& visit) {
  for (ir::Stmt& stmt : block) {
    visit(stmt, std::as_const(facts), threads);
    std::visit(ir::Overloaded{
                   [&](ir::For& op) {
                     if (op.kind == ir::LoopKind::kParallel) return;
                     Facts inner = facts;
                     inner.EnterLoop(op);
                     WalkTogether(op.body, std::move(inner), threads, visit);
                   },
                   [&](ir::While& op) { WalkTogether(op.body, facts, threads, visit); },
                   [&](ir::If& op) {
                     Facts inner = facts;
                     inner.Assume(op.cond);
                     WalkTogether(op.then_body, std::move(inner), op.then_threads.value_or(threads), visit);
                     WalkTogether(op.else_body, facts, op.else_threads.value_or(threads), visit);
                   },
                   [&](ir::Let& op) { facts.Bind(op); },
                   [&](ir::Assume& op) { facts.Assume(op.cond); },
                   ir::Ignored<ir::Alloc, ir::Store, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Reduce, ir::Atomic, ir::Barrier,
                               ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait, ir::RingStep,
                               ir::PairSum, ir::StreamSum>{},
               },
               stmt.op);
  }
}

// Of a kernel's body.
template <typename Visit>
void WalkTogether(const ir::Module& module, ir::Kernel& kernel, const Visit& visit) {
  Facts facts(module);
  facts.EnterKernel(kernel);
  WalkTogether(kernel.body, std::move(facts), AllThreads(kernel), visit);
}

}  // namespace kiln::compiler
