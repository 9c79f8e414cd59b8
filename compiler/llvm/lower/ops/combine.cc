// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/combine.h"

#include <algorithm>
#include <cstdlib>

#include "compiler/llvm/lower/arithmetic.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ReduceKind;

namespace {

ir::ExprOp OperationOf(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kAbsSum: return ir::ExprOp::kAdd;
    case ReduceKind::kMax:
    case ReduceKind::kAbsMax: return ir::ExprOp::kMax;
    case ReduceKind::kMin: return ir::ExprOp::kMin;
    case ReduceKind::kBitAnd: return ir::ExprOp::kBitAnd;
    case ReduceKind::kBitOr: return ir::ExprOp::kBitOr;
    case ReduceKind::kBitXor: return ir::ExprOp::kBitXor;
  }
  std::abort();
}

}  // namespace

Value* Combine(llvm::IRBuilderBase& builder, ReduceKind kind, DType dtype, Value* left, Value* right) {
  return Arithmetic(builder, OperationOf(kind), dtype, left, right);
}

Value* CombineAll(llvm::IRBuilderBase& builder, ReduceKind kind, DType dtype, Values values) {
  constexpr size_t kChains = 4;
  for (size_t i = kChains; i < values.size(); ++i) values[i % kChains] = Combine(builder, kind, dtype, values[i % kChains], values[i]);
  for (size_t count = std::min(values.size(), kChains); count > 1; count = (count + 1) / 2) {
    for (size_t i = 0; i < count / 2; ++i) values[i] = Combine(builder, kind, dtype, values[i], values[count - 1 - i]);
  }
  return values[0];
}

Value* ReduceIdentity(llvm::LLVMContext& llvm, ReduceKind kind, DType dtype) {
  llvm::Type* type = ValueType(llvm, dtype);
  const bool is_float = ir::IsFloat(dtype);
  const unsigned bits = unsigned(ir::Bits(dtype));
  const auto infinity = [&](bool negative) -> Value* {
    if (is_float) return llvm::ConstantFP::getInfinity(type, negative);
    if (ir::IsUnsigned(dtype) || dtype == DType::kBool) {
      return negative ? llvm::Constant::getNullValue(type) : llvm::Constant::getAllOnesValue(type);
    }
    return llvm::ConstantInt::get(type, negative ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
  };
  switch (kind) {
    case ReduceKind::kMax: return infinity(true);
    case ReduceKind::kMin: return infinity(false);
    case ReduceKind::kBitAnd: return llvm::Constant::getAllOnesValue(type);
    default: return llvm::Constant::getNullValue(type);
  }
}

DType CombinedType(DType dtype) { return ir::IsFp8(dtype) || dtype == DType::kTF32 ? DType::kF32 : dtype; }

}  // namespace kiln::llvm_ir
