// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/math/math_ir.h"

namespace kiln::llvm_ir {
namespace {

// Needs a < 2^bits · m. The truncated quotient q is exact, or one too large if the division rounded up. So |a − q · m| < m, and it is a
// multiple of m's last place: the fma is exact, and so is the correction by m when the rest is negative.
Num Step(Num a, Num m) {
  const Num rest = Fma(-TruncateFp(a / m), m, a);
  return Select(rest < 0, rest + m, rest);
}

// a mod b for 0 < b ≤ a < ∞. Subtracts multiples of b times falling powers of two, each such that a float can hold the quotient.
Num LoopOfSteps(Num a, Num b) {
  Builder& builder = *a.b;
  const double power = a.type()->isDoubleTy() ? 0x1p50 : 0x1p22;
  llvm::Function* function = builder.GetInsertBlock()->getParent();
  const auto block = [&](const char* name) { return llvm::BasicBlock::Create(builder.getContext(), name, function); };
  llvm::BasicBlock *before = builder.GetInsertBlock(), *widen = block("mod.widen"), *step = block("mod.step"), *end = block("mod.end");
  const auto phi = [&](Num first, llvm::BasicBlock* from) {
    llvm::PHINode* node = builder.CreatePHI(a.type(), 2);
    node->addIncoming(first.v, from);
    return node;
  };
  builder.CreateBr(widen);

  builder.SetInsertPoint(widen);
  llvm::PHINode* multiple = phi(b, before);
  const Num wide = b.With(multiple), wider = wide * power;
  multiple->addIncoming(wider.v, widen);
  builder.CreateCondBr((a * (1 / power) < wide).v, step, widen);

  builder.SetInsertPoint(step);
  llvm::PHINode *rest = phi(a, widen), *divisor = phi(wide, widen);
  const Num m = b.With(divisor), left = Step(a.With(rest), m), narrower = m * (1 / power);
  rest->addIncoming(left.v, step);
  divisor->addIncoming(narrower.v, step);
  builder.CreateCondBr((b < m).v, step, end);

  builder.SetInsertPoint(end);
  return left;
}

}  // namespace

Num Remainder(Num x, Num y) {
  Builder& builder = *x.b;
  llvm::Function* function = builder.GetInsertBlock()->getParent();
  const Num a = Abs(x), b = Abs(y);
  auto* some = llvm::BasicBlock::Create(builder.getContext(), "mod", function);
  auto* join = llvm::BasicBlock::Create(builder.getContext(), "mod.join", function);
  llvm::BasicBlock* before = builder.GetInsertBlock();
  builder.CreateCondBr(((a < a.Inf()) & (b > 0) & !(a < b)).v, some, join);
  builder.SetInsertPoint(some);
  const Num rest = LoopOfSteps(a, b);
  llvm::BasicBlock* end = builder.GetInsertBlock();
  builder.CreateBr(join);
  builder.SetInsertPoint(join);
  llvm::PHINode* result = builder.CreatePHI(a.type(), 2);
  result->addIncoming(a.v, before);
  result->addIncoming(rest.v, end);
  const Num defined = (a < a.Inf()) & (b > 0);
  return Select(defined, CopySign(x.With(result), x), x.NaN());
}

}  // namespace kiln::llvm_ir
