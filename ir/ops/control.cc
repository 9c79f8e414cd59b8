// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/limits.h"
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

// What a function of another language can be given by value.
bool IsPassed(DType dtype) {
  return dtype == DType::kBool || (!IsFloat(dtype) && Bits(dtype) >= 8) || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

void CheckArgument(Verifier& verifier, const Argument& argument) {
  if (!argument.buffer) {
    const DType dtype = verifier.exprs().Type(argument.value);
    if (!verifier.CheckExpr(argument.value) || IsPassed(dtype)) return;
    return verifier.Error(fmt::format("an argument of type {}", Name(dtype)), "give a bool, an integer of 8 bits or more, f16, bf16, f32 or f64");
  }
  verifier.CheckInteger(argument.value, "the offset of an address");
  if (!verifier.CheckUsable(*argument.buffer)) return;
  const Buffer& buffer = verifier.module()[*argument.buffer];
  if ((buffer.space != Space::kGlobal && buffer.space != Space::kShared) || Bits(buffer.dtype) < 8) {
    verifier.Error(fmt::format("{} in {} memory, of {}, has no address that a function could take", verifier.Name(*argument.buffer),
                               Name(buffer.space), Name(buffer.dtype)),
                   "give it tensors and shared tiles, of elements of 8 bits or more");
  }
}

}  // namespace

void Check(Verifier& verifier, const Call& op) {
  verifier.CheckTogether("a call");
  if (verifier.narrowed) verifier.Error("a call that only some threads of the block reach", "move it out of the condition: all threads come to it");
  if (Index(op.function) >= verifier.module().functions.size()) {
    return verifier.Error(fmt::format("function {}; the module has {}", Index(op.function), verifier.module().functions.size()),
                          "call one of the module's");
  }
  if (op.arguments.size() > kMaxArguments) {
    verifier.Error(fmt::format("{} arguments; a call may have {}", op.arguments.size(), kMaxArguments),
                   "pass the address of a tensor that holds them");
  }
  for (const Argument& argument : op.arguments) CheckArgument(verifier, argument);
}

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
