// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/arithmetic.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ExprOp;
using llvm::Value;

Value* Arithmetic(llvm::IRBuilderBase& builder, ExprOp op, DType dtype, Value* left, Value* right) {
  const bool is_float = ir::IsFloat(dtype), is_signed = ir::IsSigned(dtype);
  switch (op) {
    case ExprOp::kAdd: return is_float ? builder.CreateFAdd(left, right) : builder.CreateAdd(left, right);
    case ExprOp::kSub: return is_float ? builder.CreateFSub(left, right) : builder.CreateSub(left, right);
    case ExprOp::kMul: return is_float ? builder.CreateFMul(left, right) : builder.CreateMul(left, right);
    case ExprOp::kMin:
    case ExprOp::kMax: {
      const bool min = op == ExprOp::kMin;
      const auto intrinsic = is_float    ? (min ? llvm::Intrinsic::minnum : llvm::Intrinsic::maxnum)
                             : is_signed ? (min ? llvm::Intrinsic::smin : llvm::Intrinsic::smax)
                                         : (min ? llvm::Intrinsic::umin : llvm::Intrinsic::umax);
      return builder.CreateBinaryIntrinsic(intrinsic, left, right);
    }
    case ExprOp::kBitAnd:
    case ExprOp::kAnd: return builder.CreateAnd(left, right);
    case ExprOp::kBitOr:
    case ExprOp::kOr: return builder.CreateOr(left, right);
    case ExprOp::kBitXor: return builder.CreateXor(left, right);
    case ExprOp::kShl:
    case ExprOp::kShr: {
      Value* count = builder.CreateAnd(right, llvm::ConstantInt::get(right->getType(), uint64_t(ir::Bits(dtype)) - 1));
      if (op == ExprOp::kShl) return builder.CreateShl(left, count);
      return is_signed ? builder.CreateAShr(left, count) : builder.CreateLShr(left, count);
    }
    default: return nullptr;
  }
}

Value* Comparison(llvm::IRBuilderBase& builder, ExprOp op, DType dtype, Value* left, Value* right) {
  using Predicate = llvm::CmpInst::Predicate;
  // Rows: eq ne lt le gt ge.
  constexpr Predicate kFloat[] = {Predicate::FCMP_OEQ, Predicate::FCMP_UNE, Predicate::FCMP_OLT,
                                  Predicate::FCMP_OLE, Predicate::FCMP_OGT, Predicate::FCMP_OGE};
  constexpr Predicate kSigned[] = {Predicate::ICMP_EQ,  Predicate::ICMP_NE,  Predicate::ICMP_SLT,
                                   Predicate::ICMP_SLE, Predicate::ICMP_SGT, Predicate::ICMP_SGE};
  constexpr Predicate kUnsigned[] = {Predicate::ICMP_EQ,  Predicate::ICMP_NE,  Predicate::ICMP_ULT,
                                     Predicate::ICMP_ULE, Predicate::ICMP_UGT, Predicate::ICMP_UGE};
  const int row = int(op) - int(ExprOp::kEq);
  if (ir::IsFloat(dtype)) return builder.CreateFCmp(kFloat[row], left, right);
  return builder.CreateICmp(ir::IsSigned(dtype) ? kSigned[row] : kUnsigned[row], left, right);
}

}  // namespace kiln::llvm_ir
