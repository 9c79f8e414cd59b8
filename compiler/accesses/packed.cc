// SPDX-License-Identifier: Apache-2.0
#include "compiler/accesses/packed.h"

namespace kiln::compiler {
namespace {

using ir::DType;
using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

bool IsArithmetic(ExprOp op) { return op == ExprOp::kAdd || op == ExprOp::kSub || op == ExprOp::kMul; }

}  // namespace

int64_t MantissaUnit(DType dtype) { return dtype == DType::kBF16 ? 128 : 1024; }

bool HasPairs(const target::Target& target, DType dtype) {
  return dtype == DType::kF16 || (dtype == DType::kBF16 && target.Has(target::Feature::kBf16));
}

bool IsPackedConversion(const ir::ExprPool& pool, ExprId id) {
  const ExprNode& node = pool[id];
  return node.op == ExprOp::kCast && pool.Type(node.args[0]) == DType::kF32 && ir::IsFloat(node.dtype) && ir::Bits(node.dtype) < 32;
}

bool IsSmallInteger(const ir::Module& module, const Facts& facts, ExprId id) {
  const ExprNode& node = module.exprs[id];
  if (node.op != ExprOp::kCast) return false;
  const DType from = module.exprs.Type(node.args[0]);
  if (!ir::IsUnsigned(from) || ir::Bits(from) > 32) return false;
  const Range range = facts.RangeOf(node.args[0]);
  return range.min >= 0 && range.max < MantissaUnit(node.dtype);
}

bool IsPackedBits(const ir::ExprPool& pool, ExprId id) {
  const ExprNode& node = pool[id];
  return node.op == ExprOp::kReinterpret && ir::IsInteger(pool.Type(node.args[0])) && ir::IsUnsigned(pool.Type(node.args[0]));
}

int32_t PackedElements(const ir::Module& module, const Facts& facts, const target::Target& target, ExprId value, int64_t count) {
  const ExprNode& node = module.exprs[value];
  if (IsPackedConversion(module.exprs, value) && count % (32 / ir::Bits(node.dtype)) == 0) return 32 / ir::Bits(node.dtype);
  if (count % 2 != 0 || !HasPairs(target, node.dtype)) return 1;
  return IsArithmetic(node.op) || IsSmallInteger(module, facts, value) || IsPackedBits(module.exprs, value) ? 2 : 1;
}

}  // namespace kiln::compiler
