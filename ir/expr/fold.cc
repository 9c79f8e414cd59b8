// SPDX-License-Identifier: Apache-2.0
#include "ir/expr/fold.h"

#include <bit>
#include <cmath>

#include "ir/expr/numeric.h"

namespace kiln::ir {
namespace {

using Value = std::optional<int64_t>;

int64_t Wrap(uint64_t value) { return int64_t(value); }

// Truncating quotient and remainder; nothing for a divisor of zero. −2⁶³ / −1 wraps.
Value Quotient(bool is_unsigned, int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  if (is_unsigned) return Wrap(uint64_t(a) / uint64_t(b));
  return b == -1 ? Wrap(-uint64_t(a)) : a / b;
}
Value Remainder(bool is_unsigned, int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  if (is_unsigned) return Wrap(uint64_t(a) % uint64_t(b));
  return b == -1 ? 0 : a % b;
}

Value FloorDivide(bool is_unsigned, int64_t a, int64_t b) {
  Value quotient = Quotient(is_unsigned, a, b);
  if (!quotient || is_unsigned) return quotient;
  bool inexact = *Remainder(false, a, b) != 0;
  return *quotient - (inexact && (a < 0) != (b < 0));
}
Value FloorRemainder(bool is_unsigned, int64_t a, int64_t b) {
  Value remainder = Remainder(is_unsigned, a, b);
  if (!remainder || is_unsigned) return remainder;
  return *remainder != 0 && (*remainder < 0) != (b < 0) ? *remainder + b : *remainder;
}

bool Less(bool is_unsigned, int64_t a, int64_t b) { return is_unsigned ? uint64_t(a) < uint64_t(b) : a < b; }

Value FoldIntegers(ExprOp op, DType type, int64_t a, int64_t b) {
  bool is_unsigned = !IsSigned(type);
  int count = int(uint64_t(b) % uint64_t(Bits(type)));
  switch (op) {
    case ExprOp::kAdd: return Wrap(uint64_t(a) + uint64_t(b));
    case ExprOp::kSub: return Wrap(uint64_t(a) - uint64_t(b));
    case ExprOp::kMul: return Wrap(uint64_t(a) * uint64_t(b));
    case ExprOp::kDiv: return Quotient(is_unsigned, a, b);
    case ExprOp::kMod: return Remainder(is_unsigned, a, b);
    case ExprOp::kFloorDiv: return FloorDivide(is_unsigned, a, b);
    case ExprOp::kFloorMod: return FloorRemainder(is_unsigned, a, b);
    case ExprOp::kMin: return Less(is_unsigned, b, a) ? b : a;
    case ExprOp::kMax: return Less(is_unsigned, a, b) ? b : a;
    case ExprOp::kBitAnd:
    case ExprOp::kAnd: return a & b;
    case ExprOp::kBitOr:
    case ExprOp::kOr: return a | b;
    case ExprOp::kBitXor: return a ^ b;
    case ExprOp::kShl: return Wrap(uint64_t(a) << count);
    case ExprOp::kShr: return is_unsigned ? Wrap(uint64_t(a) >> count) : a >> count;
    case ExprOp::kNeg: return Wrap(-uint64_t(a));
    case ExprOp::kAbs: return !is_unsigned && a < 0 ? Wrap(-uint64_t(a)) : a;
    case ExprOp::kBitNot: return type == DType::kBool ? a == 0 : ~a;
    case ExprOp::kNot: return a == 0;
    case ExprOp::kEq: return a == b;
    case ExprOp::kNe: return a != b;
    case ExprOp::kLt: return Less(is_unsigned, a, b);
    case ExprOp::kLe: return !Less(is_unsigned, b, a);
    case ExprOp::kGt: return Less(is_unsigned, b, a);
    case ExprOp::kGe: return !Less(is_unsigned, a, b);
    default: return std::nullopt;
  }
}

// Rounding a double's result to a narrower type equals rounding the exact result: a double has more than twice the
// digits of any of them and two more (S. A. Figueroa, "When is double rounding innocuous?", 1995).
std::optional<double> FoldFloats(ExprOp op, double a, double b) {
  switch (op) {
    case ExprOp::kAdd: return a + b;
    case ExprOp::kSub: return a - b;
    case ExprOp::kMul: return a * b;
    case ExprOp::kDiv: return a / b;
    case ExprOp::kMin: return std::isnan(a) || b < a ? b : a;
    case ExprOp::kMax: return std::isnan(a) || a < b ? b : a;
    case ExprOp::kNeg: return -a;
    case ExprOp::kAbs: return std::fabs(a);
    case ExprOp::kFloor: return std::floor(a);
    case ExprOp::kCeil: return std::ceil(a);
    case ExprOp::kTrunc: return std::trunc(a);
    case ExprOp::kSqrt: return std::sqrt(a);
    default: return std::nullopt;
  }
}

Value CompareFloats(ExprOp op, double a, double b) {
  switch (op) {
    case ExprOp::kEq: return a == b;
    case ExprOp::kNe: return a != b;
    case ExprOp::kLt: return a < b;
    case ExprOp::kLe: return a <= b;
    case ExprOp::kGt: return a > b;
    case ExprOp::kGe: return a >= b;
    case ExprOp::kIsNan: return std::isnan(a);
    default: return std::nullopt;
  }
}

std::optional<ExprNode> FoldCast(DType to, const ExprNode& from) {
  if (from.op == ExprOp::kConstFloat) {
    double value = from.FloatValue();
    return IsFloat(to) ? ConstFloatNode(to, value) : ConstIntNode(to, SaturateTo(to, value));
  }
  int64_t value = from.int_value;
  if (!IsFloat(to)) return ConstIntNode(to, value);
  // A larger integer would be rounded twice; an unsigned one from 2^63 on is kept as a negative number.
  constexpr int64_t kExact = int64_t{1} << 53;
  if (value > kExact || value < (IsSigned(from.dtype) ? -kExact : 0)) return std::nullopt;
  return ConstFloatNode(to, double(value));
}

}  // namespace

ExprNode ConstIntNode(DType dtype, int64_t value) { return {.op = ExprOp::kConstInt, .dtype = dtype, .int_value = WrapTo(dtype, value)}; }

ExprNode ConstFloatNode(DType dtype, double value) {
  return {.op = ExprOp::kConstFloat, .dtype = dtype, .int_value = std::bit_cast<int64_t>(RoundTo(dtype, value))};
}

std::optional<ExprNode> Fold(const ExprNode& node, std::span<const ExprNode* const> args) {
  if (args.empty() || args.size() > 2) return std::nullopt;
  for (const ExprNode* arg : args) {
    if (arg->op != ExprOp::kConstInt && arg->op != ExprOp::kConstFloat) return std::nullopt;
  }
  const ExprNode& a = *args.front();
  const ExprNode& b = *args.back();
  if (node.op == ExprOp::kCast) return FoldCast(node.dtype, a);
  if (a.op != b.op || a.dtype != b.dtype) return std::nullopt;
  if (a.op == ExprOp::kConstInt) {
    Value value = FoldIntegers(node.op, a.dtype, a.int_value, b.int_value);
    return value ? std::optional(ConstIntNode(node.dtype, *value)) : std::nullopt;
  }
  if (node.dtype == DType::kBool) {
    Value value = CompareFloats(node.op, a.FloatValue(), b.FloatValue());
    return value ? std::optional(ConstIntNode(node.dtype, *value)) : std::nullopt;
  }
  std::optional<double> value = FoldFloats(node.op, a.FloatValue(), b.FloatValue());
  return value ? std::optional(ConstFloatNode(node.dtype, *value)) : std::nullopt;
}

}  // namespace kiln::ir
