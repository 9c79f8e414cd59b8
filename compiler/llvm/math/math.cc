// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/math/math.h"

#include <string>

#include "compiler/llvm/math/math_ir.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using ir::ExprOp;
using llvm::Value;

// The operations that are one instruction everywhere.
llvm::Intrinsic::ID PlainIntrinsic(ExprOp op) {
  switch (op) {
    case ExprOp::kFloor: return llvm::Intrinsic::floor;
    case ExprOp::kCeil: return llvm::Intrinsic::ceil;
    case ExprOp::kRound: return llvm::Intrinsic::roundeven;
    case ExprOp::kTrunc: return llvm::Intrinsic::trunc;
    case ExprOp::kFma: return llvm::Intrinsic::fma;
    default: return llvm::Intrinsic::not_intrinsic;
  }
}

// Correctly rounded unless fast.
Value* Sqrt(Builder& b, const NativeMath& native, Value* x, bool fast) {
  if (fast && x->getType()->isFloatTy()) {
    if (Value* v = native.FastSqrt(b, x)) return v;
  }
  return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x);
}

// 2 ulp.
Value* Rsqrt(Builder& b, const NativeMath& native, Value* x, bool flush) {
  if (x->getType()->isFloatTy()) {
    if (Value* v = native.Rsqrt(b, x, flush)) return v;
  }
  return b.CreateFDiv(llvm::ConstantFP::get(x->getType(), 1), b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x));
}

// 2 ulp of f32, correctly rounded of f64.
Value* DivFull(Builder& b, const NativeMath& native, Value* x, Value* y) {
  if (x->getType()->isFloatTy()) {
    if (Value* v = native.DivFull(b, x, y)) return v;
  }
  return b.CreateFDiv(x, y);
}

struct Kind {
  bool fast;
  bool flush;
};

Value* Compute(Builder& b, const NativeMath& native, ExprOp op, std::span<Value* const> args, Kind kind) {
  const Num x{&b, args[0]}, y{&b, args.back()};
  if (op == ExprOp::kMod) return Remainder(x, y).v;
  if (x.type()->isDoubleTy()) return MathF64(native, op, x, y).v;
  return (kind.fast ? FastMathF32(native, op, x, y) : MathF32(native, op, x, y, kind.flush)).v;
}

// The longer operations are functions of their own until Optimize inlines them: their branches stay out of the caller's
// blocks, and a kernel that has many of them is built faster.
bool IsLong(ExprOp op, llvm::Type* type, bool fast) {
  if (type->isDoubleTy() || op == ExprOp::kMod) return true;
  switch (op) {
    case ExprOp::kExp2:
    case ExprOp::kExp:
    case ExprOp::kSigmoid:
    case ExprOp::kSin:  // which share the reduction of an angle
    case ExprOp::kCos: return false;
    default: return !fast;
  }
}

llvm::Function* Helper(Builder& b, const NativeMath& native, ExprOp op, std::span<Value* const> args, Kind kind) {
  llvm::Module& module = *b.GetInsertBlock()->getModule();
  llvm::Type* type = args[0]->getType();
  const std::string name = "kiln." + std::string(ir::Name(op)) + (type->isDoubleTy() ? ".f64" : ".f32") + (kind.flush ? ".flush" : "");
  if (llvm::Function* known = module.getFunction(name)) return known;
  const std::vector<llvm::Type*> params(args.size(), type);
  auto* function = llvm::Function::Create(llvm::FunctionType::get(type, params, false), llvm::Function::InternalLinkage, name, module);
  function->addFnAttr(llvm::Attribute::AlwaysInline);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  llvm::IRBuilder<> inner(llvm::BasicBlock::Create(module.getContext(), "entry", function));
  std::vector<Value*> inner_args;
  for (llvm::Argument& arg : function->args()) inner_args.push_back(&arg);
  inner.CreateRet(Compute(inner, native, op, inner_args, kind));
  return function;
}

Value* InOwnType(Builder& b, const NativeMath& native, ExprOp op, std::span<Value* const> args, Kind kind) {
  Value* x = args[0];
  if (op == ExprOp::kSqrt) return Sqrt(b, native, x, kind.fast);
  if (op == ExprOp::kRsqrt) return Rsqrt(b, native, x, kind.flush);
  if (op == ExprOp::kDivFull) return DivFull(b, native, x, args[1]);
  if (!IsLong(op, x->getType(), kind.fast)) return Compute(b, native, op, args, kind);
  return b.CreateCall(Helper(b, native, op, args, kind), llvm::ArrayRef<Value*>(args.data(), args.size()));
}

}  // namespace

Num PowSpecial(Num x, Num y, Num finite) {
  const Num a = Abs(x), zero = x.Const(0), one = x.Const(1), inf = x.Inf();
  const Num grows = y > 0, shrinks = y < 0, infinite = Equal(Abs(y), inf);
  // What depends on x alone folds where x is a constant.
  Num result = Select(Equal(a, zero), Select(grows, zero, Select(shrinks, inf, finite)), finite);
  result = Select(Equal(a, inf), Select(grows, inf, Select(shrinks, zero, finite)), result);
  result = Select(Equal(a, one) & infinite, one, result);
  const Num whole = Equal(TruncateFp(y), y);
  const Num half = y * 0.5;
  const Num odd = whole & !Equal(TruncateFp(half), half);
  result = Select(odd & (x.Bits() < x.Bits().Int(0)), -result, result);
  result = Select((x < 0) & (a < inf) & !whole, x.NaN(), result);
  return Select(Equal(x, one), one, Select(IsNaN(x) & !Equal(y, zero), x, result));
}

Value* BuildMath(Builder& b, const NativeMath& native, ExprOp op, DType dtype, std::span<Value* const> args, bool fast) {
  llvm::IRBuilderBase::FastMathFlagGuard guard(b);
  b.clearFastMathFlags();
  const llvm::Intrinsic::ID plain = PlainIntrinsic(op);
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  if (op == ExprOp::kIsNan) return b.CreateFCmpUNO(args[0], args[0]);
  const bool flush = fast || dtype == DType::kF16 || op == ExprOp::kExp2Ftz;  // f16's subnormals are normal in f32
  if (op == ExprOp::kExp2Ftz) op = ExprOp::kExp2;
  const auto apply = [&](std::span<Value* const> values) -> Value* {
    if (plain != llvm::Intrinsic::not_intrinsic) {
      return b.CreateIntrinsic(plain, {values[0]->getType()}, llvm::ArrayRef<Value*>(values.data(), values.size()));
    }
    return InOwnType(b, native, op, values, {.fast = fast, .flush = flush});
  };
  if (!half || (plain != llvm::Intrinsic::not_intrinsic && dtype == DType::kF16)) return apply(args);
  std::vector<Value*> wide;
  for (Value* arg : args) wide.push_back(b.CreateFPExt(arg, b.getFloatTy()));
  return b.CreateFPTrunc(apply(wide), args[0]->getType());
}

}  // namespace kiln::llvm_ir
