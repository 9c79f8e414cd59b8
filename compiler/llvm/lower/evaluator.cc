// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/llvm/lower/arithmetic.h"
#include "compiler/rules/roles.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using ir::Space;

namespace {

// Types whose arithmetic happens in f32: there is none in their own.
bool ComputesInF32(DType type) { return ir::IsFp8(type) || type == DType::kTF32; }

}  // namespace

// The bits as memory holds them: a bool is a byte there.
Value* Evaluator::Reinterpret(Value* v, DType from, DType to) const {
  llvm::Type* held = to == DType::kBool ? b().getInt8Ty() : ValueType(llvm(), to);
  return FromMemory(b().CreateBitCast(ToMemory(v, from), held), to);
}

Value* Evaluator::Eval(ExprId id) {
  const bool outermost = !std::exchange(evaluating_, true);
  Value* result = nullptr;
  if (arm_ == nullptr) {
    if (const auto it = evaluated_.find(ir::Index(id)); it != evaluated_.end()) result = it->second;
  }
  if (result == nullptr) {
    result = EvalNode(id, pool()[id]);
    if (arm_ == nullptr) evaluated_[ir::Index(id)] = result;
  }
  if (outermost) {
    evaluated_.clear();
    evaluating_ = false;
  }
  return result;
}

Value* Evaluator::EvalIndex(ExprId id) {
  Value* v = Eval(id);
  return ir::IsSigned(pool().Type(id)) ? b().CreateSExtOrTrunc(v, b().getInt64Ty()) : b().CreateZExtOrTrunc(v, b().getInt64Ty());
}

Value* Evaluator::EvalNode(ExprId id, const ExprNode& node) {
  llvm::Type* type = ValueType(llvm(), node.dtype);
  switch (node.op) {
    case ExprOp::kConstInt: return llvm::ConstantInt::get(type, uint64_t(node.int_value), ir::IsSigned(node.dtype));
    case ExprOp::kConstFloat: return Constant(node.dtype, node.FloatValue());
    case ExprOp::kVar: {
      const auto it = vars_.find(node.ref);
      if (it != vars_.end()) return it->second;
      Internal(fmt::format("variable '{}' has no value here", module().vars[node.ref].name));
      return llvm::PoisonValue::get(type);
    }
    case ExprOp::kLoad: return access_->Load(id, arm_, nullptr);
    case ExprOp::kCast: return device().Convert(Eval(node.args[0]), pool().Type(node.args[0]), node.dtype);
    case ExprOp::kReinterpret: return Reinterpret(Eval(node.args[0]), pool().Type(node.args[0]), node.dtype);
    case ExprOp::kSelect: return EvalSelect(node);
    case ExprOp::kMasked: return EvalMasked(id, node);
    case ExprOp::kAnd:
    case ExprOp::kOr: return MayNotLoad(node.args[1]) ? EvalSelect(node) : EvalOperation(node);
    case ExprOp::kNot:
    case ExprOp::kBitNot: return b().CreateNot(Eval(node.args[0]));
    default: break;
  }
  if (Value* shared = ir::IsComparison(node.op) ? access_->Loaded(id) : nullptr) return shared;
  Value* group = EvalGroup(node);
  return group != nullptr ? group : EvalOperation(node);
}

// The thread's number divided by that of a group's threads, or of several groups: a value that the backend knows to be one number for all of a warp.
// nullptr for another expression.
Value* Evaluator::EvalGroup(const ExprNode& node) {
  if (threads().warp_group == nullptr || node.op != ExprOp::kFloorDiv) return nullptr;
  const ExprNode& number = pool()[node.args[0]];
  const int64_t divisor = pool().ConstInt(node.args[1]).value_or(1), group = compiler::kGroupThreads;
  if (number.op != ExprOp::kVar || module().vars[number.ref].kind != ir::VarKind::kThread || divisor <= 0 || divisor % group != 0) return nullptr;
  return b().CreateZExtOrTrunc(b().CreateUDiv(threads().warp_group, I32(divisor / group)), ValueType(llvm(), node.dtype));
}

// An operation on all of its arguments, whose type they share.
Value* Evaluator::EvalOperation(const ExprNode& node) {
  const DType given = pool().Type(node.args[0]);
  const bool widened = ComputesInF32(given);
  const DType type = widened ? DType::kF32 : given;
  Values args;
  for (ExprId arg : node.Args()) {
    Value* v = Eval(arg);
    args.push_back(widened ? device().Convert(v, given, DType::kF32) : v);
  }
  const auto narrow = [&](Value* v) { return widened ? device().Convert(v, DType::kF32, node.dtype) : v; };
  if (ir::IsComparison(node.op)) return Comparison(b(), node.op, type, args[0], args[1]);
  if (node.op == ExprOp::kNeg) return narrow(ir::IsFloat(type) ? b().CreateFNeg(args[0]) : b().CreateNeg(args[0]));
  if (node.op == ExprOp::kAbs) {
    if (ir::IsFloat(type)) return narrow(b().CreateUnaryIntrinsic(llvm::Intrinsic::fabs, args[0]));
    return ir::IsUnsigned(type) ? args[0] : b().CreateBinaryIntrinsic(llvm::Intrinsic::abs, args[0], b().getFalse());
  }
  if (node.op == ExprOp::kIsNan) return b().CreateFCmpUNO(args[0], args[0]);
  const bool remains = node.op == ExprOp::kMod && ir::IsFloat(type);
  if (remains || node.op >= ExprOp::kFloor) {
    return narrow(device().Math(node.op, type, args, context().request().options.fast_math()));
  }
  return narrow(EvalBinary(node, type, args[0], args[1]));
}

Value* Evaluator::EvalBinary(const ExprNode& node, DType dtype, Value* left, Value* right) {
  switch (node.op) {
    case ExprOp::kDiv: return ir::IsFloat(dtype) ? b().CreateFDiv(left, right) : Divide(node, dtype, left, right).first;
    case ExprOp::kMod: return Divide(node, dtype, left, right).second;  // of floats: Math
    case ExprOp::kFloorDiv:
    case ExprOp::kFloorMod: return FloorDivide(node, dtype, left, right);
    default: break;
  }
  if (Value* v = Arithmetic(b(), node.op, dtype, left, right)) return v;
  Unsupported(fmt::format("expression '{}'", ir::Name(node.op)));
  return left;
}

// Quotient and remainder that have a value, if an unspecified one, for every divisor: LLVM's have none for 0 and for the smallest
// integer by −1, and would drop what the program does to avoid them.
std::pair<Value*, Value*> Evaluator::Divide(const ExprNode& node, DType dtype, Value* a, Value* c) {
  llvm::Type* type = a->getType();
  const compiler::Range range = facts().RangeOf(node.args[1]);
  const bool is_signed = ir::IsSigned(dtype) && (facts().RangeOf(node.args[0]).min < 0 || range.min <= 0);
  // LLVM 22 joins a quotient and a remainder of 16 bits to one operation, for which its AMDGPU backend has no instructions.
  if (target().family == target::Family::kAmdgpu && !target().emulated && type->getIntegerBitWidth() < 32) {
    const auto widened = [&](Value* v) { return is_signed ? b().CreateSExt(v, b().getInt32Ty()) : b().CreateZExt(v, b().getInt32Ty()); };
    const auto [quotient, remainder] = Divide(node, dtype, widened(a), widened(c));
    return {b().CreateTrunc(quotient, type), b().CreateTrunc(remainder, type)};
  }
  Value *one = llvm::ConstantInt::get(type, 1), *zero = llvm::ConstantInt::get(type, 0);
  if (range.min <= 0 && range.max >= 0) c = b().CreateSelect(b().CreateICmpEQ(c, zero), one, c);
  if (!is_signed) return {b().CreateUDiv(a, c), b().CreateURem(a, c)};
  if (range.min > -1 || range.max < -1) return {b().CreateSDiv(a, c), b().CreateSRem(a, c)};
  Value* negates = b().CreateICmpEQ(c, llvm::ConstantInt::getSigned(type, -1));
  c = b().CreateSelect(negates, one, c);
  Value *quotient = b().CreateSDiv(a, c), *remainder = b().CreateSRem(a, c);
  return {b().CreateSelect(negates, b().CreateNeg(a), quotient), remainder};
}

Value* Evaluator::FloorDivide(const ExprNode& node, DType dtype, Value* a, Value* c) {
  const bool div = node.op == ExprOp::kFloorDiv;
  const bool non_negative = !ir::IsSigned(dtype) || (facts().RangeOf(node.args[0]).min >= 0 && facts().RangeOf(node.args[1]).min > 0);
  if (non_negative && ir::Bits(dtype) >= 32) return div ? b().CreateUDiv(a, c) : b().CreateURem(a, c);
  auto [quotient, remainder] = Divide(node, dtype, a, c);
  Value* zero = llvm::ConstantInt::get(a->getType(), 0);
  Value* adjust = b().CreateAnd(b().CreateICmpNE(remainder, zero), b().CreateICmpSLT(b().CreateXor(remainder, c), zero));
  if (div) return b().CreateSub(quotient, b().CreateZExt(adjust, a->getType()));
  return b().CreateAdd(remainder, b().CreateSelect(adjust, c, zero));
}

void Evaluator::EvalWhere(Value* condition, const std::function<void()>& evaluate) {
  Value* outer = arm_;
  arm_ = outer == nullptr ? condition : b().CreateAnd(outer, condition);
  evaluate();
  arm_ = outer;
}

// A select may guard a load that would leave its tile, or memory: such loads happen only where their arm is chosen.
Value* Evaluator::EvalSelect(const ExprNode& node) {
  Value* condition = Eval(node.args[0]);
  const auto under = [&](Value* when, ExprId value) {
    Value* v = nullptr;
    EvalWhere(when, [&] { v = Eval(value); });
    return v;
  };
  if (node.op == ExprOp::kAnd) return b().CreateAnd(condition, under(condition, node.args[1]));
  if (node.op == ExprOp::kOr) return b().CreateOr(condition, under(b().CreateNot(condition), node.args[1]));
  if (!MayNotLoad(node.args[1]) && !MayNotLoad(node.args[2])) {
    return b().CreateSelect(condition, Eval(node.args[1]), Eval(node.args[2]));
  }
  Value *chosen = under(condition, node.args[1]), *other = under(b().CreateNot(condition), node.args[2]);
  return b().CreateSelect(condition, chosen, other);
}

// The indices are evaluated as a select's arm is, so nothing that only holds under the mask is kept for use elsewhere.
Value* Evaluator::EvalMasked(ExprId id, const ExprNode& node) {
  if (Value* loaded = access_->Loaded(id)) return loaded;
  Value *mask = Eval(node.args[0]), *outer = arm_, *loaded = nullptr;
  {
    const FactsScope scope(context());
    context().facts().Assume(node.args[0]);
    arm_ = outer == nullptr ? mask : b().CreateAnd(outer, mask);
    loaded = access_->Load(node.args[1], arm_, mask);
  }
  arm_ = outer == nullptr ? b().CreateNot(mask) : b().CreateAnd(outer, b().CreateNot(mask));
  Value* other = Eval(node.args[2]);
  arm_ = outer;
  return b().CreateSelect(mask, loaded, other);
}

bool Evaluator::MayNotLoad(ExprId id) const {
  std::vector<compiler::Access> loads;
  compiler::CollectLoads(pool(), id, loads);
  return std::ranges::any_of(loads, [&](const compiler::Access& load) {
    if (compiler::HasGaps(module(), load.buffer) || WatchesReads(load.buffer)) return true;
    const bool dynamic = module()[load.buffer].space == Space::kShared || target().emulated;
    return dynamic && module()[load.buffer].space != Space::kGlobal && !compiler::ProvablyInside(module(), facts(), load.buffer, load.indices);
  });
}

}  // namespace kiln::llvm_ir
