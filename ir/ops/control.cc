// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {
namespace {

void CheckParallel(Verifier& verifier, const For& op) {
  if (verifier.InParallel()) verifier.Error("a parallel loop inside a parallel or vectorized one", "make them one loop with several variables");
  int64_t iterations = 1;
  for (ExprId extent : op.extents) {
    std::optional<int64_t> value = verifier.exprs().ConstInt(extent);
    if (!value)
      return verifier.Unsupported("a parallel loop whose extent is not constant", "loop over a constant tile and guard its statements with if");
    if (*value > 0 && (__builtin_mul_overflow(iterations, *value, &iterations) || iterations > kMaxTileElements)) {
      return verifier.Error("a parallel loop of more than 2^24 iterations", "shrink the tile");
    }
  }
}

void CheckKind(Verifier& verifier, const For& op) {
  bool parallel = op.kind == LoopKind::kParallel;
  if (parallel) CheckParallel(verifier, op);
  if (op.kind == LoopKind::kPipelined || op.kind == LoopKind::kPersistent) verifier.CheckTogether(fmt::format("a {} loop", Name(op.kind)));
  if (!parallel && op.vars.size() > 1)
    verifier.Error(fmt::format("a {} loop of {} variables", Name(op.kind), op.vars.size()), "nest loops of one variable each");
  if (op.num_stages > kMaxStages) verifier.Error(fmt::format("{} stages", op.num_stages), fmt::format("use at most {}", kMaxStages));
  if (op.num_stages > 0 && op.kind != LoopKind::kPipelined) verifier.Error(fmt::format("stages on a {} loop", Name(op.kind)), "make it pipelined");
  if (!parallel && !op.layout && op.coalesced_width > 0) verifier.Error(fmt::format("coalesced on a {} loop", Name(op.kind)), "make it parallel");
}

// A plan names variables of the loop around it by number; loads along the last one are plain vectors.
void CheckAcross(Verifier& verifier, const For& op, const Stmt& stmt) {
  const auto* store = std::get_if<Store>(&stmt.op);
  if (store == nullptr || !store->plan) return;
  for (const LoadPlan& load : store->plan->loads) {
    if (load.form == LoadForm::kAcross ? load.across + 1 < op.vars.size() : load.across == 0) continue;
    verifier.Error(fmt::format("a load of {} across variable {} of a loop of {}", verifier.Name(load.buffer), load.across, op.vars.size()),
                   "name one before the last");
  }
}

}  // namespace

void Check(Verifier& verifier, const For& op) {
  if (op.vars.empty() || op.vars.size() != op.extents.size()) {
    return verifier.Error(fmt::format("{} loop variables and {} extents", op.vars.size(), op.extents.size()), "give each variable an extent");
  }
  for (size_t i = 0; i < op.vars.size(); ++i) verifier.CheckTyped(op.extents[i], verifier.module()[op.vars[i]].dtype, "the extent");
  CheckKind(verifier, op);
  const int64_t threads = verifier.threads.Count();
  if (verifier.narrowed && op.layout && op.layout->Threads() > threads) {
    verifier.Error(fmt::format("a layout over {} threads, where {} come", op.layout->Threads(), threads), "spread the loop over these");
  }
  for (const Stmt& stmt : op.body) CheckAcross(verifier, op, stmt);
  verifier.CheckLoop(op);
}

void Check(Verifier& verifier, const If& op) {
  verifier.CheckCondition(op.cond);
  ++verifier.branches;
  const std::optional<ThreadRange>&then = op.then_threads, &otherwise = op.else_threads;
  if (then && otherwise && then->begin < otherwise->end && otherwise->begin < then->end) {
    verifier.Error("both branches name some of the same threads", "a thread comes to one of them");
  }
  verifier.CheckBranch(op.then_body, then);
  verifier.CheckBranch(op.else_body, otherwise);
  --verifier.branches;
}

void Check(Verifier& verifier, const While& op) {
  verifier.CheckCondition(op.cond);
  verifier.loops.push_back(LoopKind::kSerial);
  verifier.CheckBlock(op.body);
  verifier.loops.pop_back();
}

namespace {

void CheckLeaves(Verifier& verifier, std::string_view word) {
  bool in_loop = !verifier.loops.empty();
  if (!in_loop) return verifier.Error(fmt::format("{} outside a loop", word), "put it into the loop that it concerns, or use an if");
  LoopKind kind = verifier.loops.back();
  if (kind == LoopKind::kParallel || kind == LoopKind::kVectorized) {
    verifier.Error(fmt::format("{} in a {} loop, whose iterations have no order", word, Name(kind)), "guard the statements with if");
  }
}

}  // namespace

void Check(Verifier& verifier, const Break&) { CheckLeaves(verifier, "break"); }
void Check(Verifier& verifier, const Continue&) { CheckLeaves(verifier, "continue"); }

}  // namespace kiln::ir
