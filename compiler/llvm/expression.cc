// SPDX-License-Identifier: Apache-2.0
//
// Scalar expressions, as ir/expr.h defines them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/vector_width.h"

#include "compiler/llvm/kernel_lowering.h"

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

Value* KernelLowering::Constant(DType dtype, double value) {
  llvm::Type* type = ValueType(llvm(), dtype);
  if (ir::IsFp8(dtype)) return device_->Convert(llvm::ConstantFP::get(b().getFloatTy(), value), DType::kF32, dtype);
  if (ir::IsFloat(dtype)) return llvm::ConstantFP::get(type, value);
  return llvm::ConstantInt::get(type, uint64_t(int64_t(value)), ir::IsSigned(dtype));
}

Value* KernelLowering::PadValue(const ir::Buffer& buffer) { return ToMemory(Constant(buffer.dtype, buffer.pad_value.value_or(0)), buffer.dtype); }

Value* KernelLowering::FromMemory(Value* v, DType dtype) {
  return dtype == DType::kBool ? b().CreateICmpNE(v, llvm::ConstantInt::get(v->getType(), 0)) : v;
}

Value* KernelLowering::ToMemory(Value* v, DType dtype) { return dtype == DType::kBool ? b().CreateZExt(v, b().getInt8Ty()) : v; }

// The bits as memory holds them: a bool is a byte there.
Value* KernelLowering::Reinterpret(Value* v, DType from, DType to) {
  llvm::Type* held = to == DType::kBool ? b().getInt8Ty() : ValueType(llvm(), to);
  return FromMemory(b().CreateBitCast(ToMemory(v, from), held), to);
}

Value* KernelLowering::Eval(ExprId id) {
  const bool outermost = !std::exchange(evaluating_, true);
  Value* result = nullptr;
  if (element_ != nullptr)
    if (const auto it = element_->loaded.find(ir::Index(id)); it != element_->loaded.end()) result = it->second;
  if (result == nullptr && arm_ == nullptr) {
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

Value* KernelLowering::EvalNode(ExprId id, const ExprNode& node) {
  llvm::Type* type = ValueType(llvm(), node.dtype);
  switch (node.op) {
    case ExprOp::kConstInt: return llvm::ConstantInt::get(type, uint64_t(node.int_value), ir::IsSigned(node.dtype));
    case ExprOp::kConstFloat: return Constant(node.dtype, node.FloatValue());
    case ExprOp::kVar: {
      const auto it = vars_.find(node.ref);
      if (it != vars_.end()) return it->second;
      diagnostics_.Internal(fmt::format("variable '{}' has no value here", module_.vars[node.ref].name), loc_);
      return llvm::PoisonValue::get(type);
    }
    case ExprOp::kLoad: return EvalLoad(id, node);
    case ExprOp::kCast: return device_->Convert(Eval(node.args[0]), pool().Type(node.args[0]), node.dtype);
    case ExprOp::kReinterpret: return Reinterpret(Eval(node.args[0]), pool().Type(node.args[0]), node.dtype);
    case ExprOp::kSelect: return EvalSelect(node);
    case ExprOp::kAnd:
    case ExprOp::kOr:
      if (MayLeaveTile(node.args[1])) return EvalSelect(node);
      break;
    case ExprOp::kNot:
    case ExprOp::kBitNot: return b().CreateNot(Eval(node.args[0]));
    default: break;
  }
  const DType operand_type = pool().Type(node.args[0]);
  const bool widened = ComputesInF32(operand_type);
  const DType type_of = widened ? DType::kF32 : operand_type;
  Values args;
  for (ExprId arg : node.Args()) {
    Value* v = Eval(arg);
    args.push_back(widened ? device_->Convert(v, operand_type, DType::kF32) : v);
  }
  const auto narrow = [&](Value* v) { return widened ? device_->Convert(v, DType::kF32, node.dtype) : v; };
  if (node.op >= ExprOp::kEq && node.op <= ExprOp::kGe) return EvalCompare(node, args[0], args[1], type_of);
  if (node.op == ExprOp::kNeg) return narrow(ir::IsFloat(type_of) ? b().CreateFNeg(args[0]) : b().CreateNeg(args[0]));
  if (node.op == ExprOp::kAbs) {
    if (ir::IsFloat(type_of)) return narrow(b().CreateUnaryIntrinsic(llvm::Intrinsic::fabs, args[0]));
    return ir::IsUnsigned(type_of) ? args[0] : b().CreateBinaryIntrinsic(llvm::Intrinsic::abs, args[0], b().getFalse());
  }
  if (node.op == ExprOp::kIsNan) return b().CreateFCmpUNO(args[0], args[0]);
  const bool remains = node.op == ExprOp::kMod && ir::IsFloat(type_of);
  if (remains || node.op >= ExprOp::kFloor) return narrow(device_->Math(node.op, type_of, args, context_.options.fast_math()));
  ExprNode typed = node;
  typed.dtype = type_of;
  return narrow(EvalBinary(typed, args[0], args[1]));
}

// Quotient and remainder that have a value, if an unspecified one, for every divisor: LLVM's have none for 0 and for the smallest
// integer by −1, and would drop what the program does to avoid them.
std::pair<Value*, Value*> KernelLowering::Divide(const ExprNode& node, Value* a, Value* c) {
  llvm::Type* type = a->getType();
  // LLVM 22 joins a quotient and a remainder of 16 bits to one operation, for which its AMDGPU backend has no instructions.
  if (context_.target->family == target::Family::kAmdgpu && !context_.target->emulated && type->getIntegerBitWidth() < 32) {
    const bool sign = ir::IsSigned(node.dtype);
    const auto widened = [&](Value* v) { return sign ? b().CreateSExt(v, b().getInt32Ty()) : b().CreateZExt(v, b().getInt32Ty()); };
    const auto [quotient, remainder] = Divide(node, widened(a), widened(c));
    return {b().CreateTrunc(quotient, type), b().CreateTrunc(remainder, type)};
  }
  const compiler::Range range = facts_.RangeOf(node.args[1]);
  const bool is_signed = ir::IsSigned(node.dtype);
  Value *one = llvm::ConstantInt::get(type, 1), *zero = llvm::ConstantInt::get(type, 0);
  if (range.min <= 0 && range.max >= 0) c = b().CreateSelect(b().CreateICmpEQ(c, zero), one, c);
  if (!is_signed) return {b().CreateUDiv(a, c), b().CreateURem(a, c)};
  if (range.min > -1 || range.max < -1) return {b().CreateSDiv(a, c), b().CreateSRem(a, c)};
  Value* negates = b().CreateICmpEQ(c, llvm::ConstantInt::getSigned(type, -1));
  c = b().CreateSelect(negates, one, c);
  Value *quotient = b().CreateSDiv(a, c), *remainder = b().CreateSRem(a, c);
  return {b().CreateSelect(negates, b().CreateNeg(a), quotient), remainder};
}

Value* KernelLowering::EvalBinary(const ExprNode& node, Value* a, Value* c) {
  const bool is_float = ir::IsFloat(node.dtype), is_signed = ir::IsSigned(node.dtype);
  switch (node.op) {
    case ExprOp::kAdd: return is_float ? b().CreateFAdd(a, c) : b().CreateAdd(a, c);
    case ExprOp::kSub: return is_float ? b().CreateFSub(a, c) : b().CreateSub(a, c);
    case ExprOp::kMul: return is_float ? b().CreateFMul(a, c) : b().CreateMul(a, c);
    case ExprOp::kDiv: return is_float ? b().CreateFDiv(a, c) : Divide(node, a, c).first;
    case ExprOp::kMod: return Divide(node, a, c).second;  // of floats: Math
    case ExprOp::kFloorDiv:
    case ExprOp::kFloorMod: {
      const bool div = node.op == ExprOp::kFloorDiv;
      const bool non_negative = !is_signed || (facts_.RangeOf(node.args[0]).min >= 0 && facts_.RangeOf(node.args[1]).min > 0);
      if (non_negative && ir::Bits(node.dtype) >= 32) return div ? b().CreateUDiv(a, c) : b().CreateURem(a, c);
      auto [quotient, remainder] = Divide(node, a, c);
      Value* zero = llvm::ConstantInt::get(a->getType(), 0);
      Value* adjust = b().CreateAnd(b().CreateICmpNE(remainder, zero), b().CreateICmpSLT(b().CreateXor(remainder, c), zero));
      if (div) return b().CreateSub(quotient, b().CreateZExt(adjust, a->getType()));
      return b().CreateAdd(remainder, b().CreateSelect(adjust, c, zero));
    }
    case ExprOp::kMin:
    case ExprOp::kMax: {
      const bool min = node.op == ExprOp::kMin;
      const auto intrinsic = is_float    ? (min ? llvm::Intrinsic::minnum : llvm::Intrinsic::maxnum)
                             : is_signed ? (min ? llvm::Intrinsic::smin : llvm::Intrinsic::smax)
                                         : (min ? llvm::Intrinsic::umin : llvm::Intrinsic::umax);
      return b().CreateBinaryIntrinsic(intrinsic, a, c);
    }
    case ExprOp::kBitAnd:
    case ExprOp::kAnd: return b().CreateAnd(a, c);
    case ExprOp::kBitOr:
    case ExprOp::kOr: return b().CreateOr(a, c);
    case ExprOp::kBitXor: return b().CreateXor(a, c);
    case ExprOp::kShl:
    case ExprOp::kShr: {
      Value* count = b().CreateAnd(c, llvm::ConstantInt::get(c->getType(), uint64_t(ir::Bits(node.dtype)) - 1));
      if (node.op == ExprOp::kShl) return b().CreateShl(a, count);
      return is_signed ? b().CreateAShr(a, count) : b().CreateLShr(a, count);
    }
    default: Unsupported(fmt::format("expression '{}'", ir::Name(node.op))); return a;
  }
}

// A select may guard a load that would leave its tile: such loads happen only where their arm is chosen.
Value* KernelLowering::EvalSelect(const ExprNode& node) {
  Value *condition = Eval(node.args[0]), *outer = arm_;
  const auto under = [&](Value* when, ExprId value) {
    arm_ = outer == nullptr ? when : b().CreateAnd(outer, when);
    Value* v = Eval(value);
    arm_ = outer;
    return v;
  };
  if (node.op == ExprOp::kAnd) return b().CreateAnd(condition, under(condition, node.args[1]));
  if (node.op == ExprOp::kOr) return b().CreateOr(condition, under(b().CreateNot(condition), node.args[1]));
  if (!MayLeaveTile(node.args[1]) && !MayLeaveTile(node.args[2])) {
    return b().CreateSelect(condition, Eval(node.args[1]), Eval(node.args[2]));
  }
  Value *chosen = under(condition, node.args[1]), *other = under(b().CreateNot(condition), node.args[2]);
  return b().CreateSelect(condition, chosen, other);
}

bool KernelLowering::MayLeaveTile(ExprId id) const {
  std::vector<compiler::Access> loads;
  compiler::CollectLoads(pool(), id, loads);
  return std::ranges::any_of(loads, [&](const compiler::Access& load) {
    const bool dynamic = module_[load.buffer].space == Space::kShared || context_.target->emulated;
    return dynamic && module_[load.buffer].space != Space::kGlobal && !compiler::ProvablyInside(module_, facts_, load.buffer, load.indices);
  });
}

Value* KernelLowering::EvalCompare(const ExprNode& node, Value* a, Value* c, DType type) {
  using Predicate = llvm::CmpInst::Predicate;
  // Rows: eq ne lt le gt ge. A comparison with NaN is false, "not equal" true.
  constexpr Predicate kFloat[] = {Predicate::FCMP_OEQ, Predicate::FCMP_UNE, Predicate::FCMP_OLT,
                                  Predicate::FCMP_OLE, Predicate::FCMP_OGT, Predicate::FCMP_OGE};
  constexpr Predicate kSigned[] = {Predicate::ICMP_EQ,  Predicate::ICMP_NE,  Predicate::ICMP_SLT,
                                   Predicate::ICMP_SLE, Predicate::ICMP_SGT, Predicate::ICMP_SGE};
  constexpr Predicate kUnsigned[] = {Predicate::ICMP_EQ,  Predicate::ICMP_NE,  Predicate::ICMP_ULT,
                                     Predicate::ICMP_ULE, Predicate::ICMP_UGT, Predicate::ICMP_UGE};
  const int row = int(node.op) - int(ExprOp::kEq);
  if (ir::IsFloat(type)) return b().CreateFCmp(kFloat[row], a, c);
  return b().CreateICmp(ir::IsSigned(type) ? kSigned[row] : kUnsigned[row], a, c);
}

Value* KernelLowering::EvalIndex(ExprId id) {
  Value* v = Eval(id);
  return ir::IsSigned(pool().Type(id)) ? b().CreateSExtOrTrunc(v, b().getInt64Ty()) : b().CreateZExtOrTrunc(v, b().getInt64Ty());
}

Value* KernelLowering::EvalLoad(ExprId, const ExprNode& node) {
  const ir::BufferId id{node.ref};
  const ir::Buffer& buffer = module_[id];
  if (buffer.space == Space::kFragment && element_ != nullptr) {
    const ElementAddress& address = AddressOf(id, node.Args());
    return FromMemory(LoadRegister(id, address.registers[size_t(element_->current)]), buffer.dtype);
  }
  if (ir::Bits(buffer.dtype) < 8) {
    Unsupported(fmt::format("elements of {} one by one ('{}')", ir::Name(buffer.dtype), buffer.name), "load bytes and unpack them");
    return llvm::PoisonValue::get(ValueType(llvm(), buffer.dtype));
  }
  Value* condition = buffer.space == Space::kGlobal ? InsideOf(id, node.Args()) : nullptr;
  if (element_ != nullptr && element_->guard != nullptr && (buffer.space == Space::kGlobal || buffer.space == Space::kShared)) {
    condition = condition == nullptr ? element_->guard : b().CreateAnd(condition, element_->guard);
  }
  const bool may_leave = MayLeave(id, node.Args());
  if (buffer.space == Space::kLocal && element_ != nullptr && (may_leave || IsOfPadding(node.Args()))) condition = element_->guard;
  if (arm_ != nullptr && (buffer.space == Space::kShared || may_leave)) condition = condition == nullptr ? arm_ : b().CreateAnd(condition, arm_);
  CheckInside(id, node.Args(), condition, /*write=*/false);
  Value* pointer = ElementPointer(id, node.Args());
  Value* v = LoadGuarded(id, MemoryType(llvm(), buffer.dtype), pointer, condition, AlignOf(id, 1), PadValue(buffer), /*once=*/false);
  return FromMemory(v, buffer.dtype);
}

}  // namespace kiln::llvm_ir
