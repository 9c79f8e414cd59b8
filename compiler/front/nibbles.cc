// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/nibbles.h"

#include <array>
#include <cmath>

#include "ir/expr/numeric.h"

namespace kiln::compiler {

using ir::DType;
using ir::ExprId;
using ir::ExprOp;

namespace {

// Of the numbers from 0 to 6: the bits as an f8e4m3, and what is rounded to the number or a lower one. Halfway goes to the even code.
struct Step {
  int64_t bits;
  double most;
  bool inclusive;
};
constexpr std::array<Step, 7> kSteps = {{{0x00, 0.25, true},   // 0
                                         {0x30, 0.75, false},  // 0.5
                                         {0x38, 1.25, true},   // 1
                                         {0x3c, 1.75, false},  // 1.5
                                         {0x40, 2.5, true},    // 2
                                         {0x44, 3.5, false},   // 3
                                         {0x48, 5.0, true}}};  // 4
constexpr int64_t kMost = 0x4c;                                // 6

}  // namespace

std::optional<ExprId> Nibbles::ExactHalf(ExprId index) {
  const ir::ExprNode node = exprs_[index];
  if (node.op == ExprOp::kConstInt && node.int_value % 2 == 0) return exprs_.Int(node.int_value / 2, node.dtype);
  if (node.op == ExprOp::kMul) {
    if (const std::optional<ExprId> half = ExactHalf(node.args[1])) return exprs_.Mul(node.args[0], *half);
    if (const std::optional<ExprId> half = ExactHalf(node.args[0])) return exprs_.Mul(*half, node.args[1]);
  }
  if (node.op == ExprOp::kAdd) {
    const std::optional<ExprId> a = ExactHalf(node.args[0]), b = ExactHalf(node.args[1]);
    if (a && b) return exprs_.Add(*a, *b);
  }
  return std::nullopt;
}

ExprId Nibbles::Half(ExprId index) {
  if (const std::optional<ExprId> half = ExactHalf(index)) return *half;
  const ir::ExprNode node = exprs_[index];
  if (node.op == ExprOp::kAdd) {
    if (const std::optional<ExprId> a = ExactHalf(node.args[0])) return exprs_.Add(*a, Half(node.args[1]));
    if (const std::optional<ExprId> b = ExactHalf(node.args[1])) return exprs_.Add(Half(node.args[0]), *b);
  }
  return exprs_.Make(ExprOp::kFloorDiv, {index, exprs_.Int(2, node.dtype)});
}

ExprId Nibbles::Odd(ExprId index) {
  const ir::ExprNode node = exprs_[index];
  if (ExactHalf(index)) return exprs_.Int(0, node.dtype);
  if (node.op == ExprOp::kAdd) {
    if (ExactHalf(node.args[0])) return Odd(node.args[1]);
    if (ExactHalf(node.args[1])) return Odd(node.args[0]);
  }
  return exprs_.Make(ExprOp::kFloorMod, {index, exprs_.Int(2, node.dtype)});
}

ExprId Nibbles::Shift(ExprId index) { return exprs_.Cast(DType::kU8, exprs_.Mul(Odd(index), exprs_.Int(4, exprs_.Type(index)))); }

ExprId Nibbles::Of(ExprId byte, ExprId index) { return And(exprs_.Make(ExprOp::kShr, {byte, Shift(index)}), 15); }

ExprId Nibbles::With(ExprId byte, ExprId index, ExprId code) {
  const ExprId shift = Shift(index);
  const ExprId others = exprs_.Make(ExprOp::kShr, {Byte(0xf0), shift});
  return Or(exprs_.Make(ExprOp::kBitAnd, {byte, others}), exprs_.Make(ExprOp::kShl, {code, shift}));
}

ExprId Nibbles::Pair(ExprId low, ExprId high) { return Or(low, Left(high, 4)); }

ExprId Nibbles::Bits(ExprId value, DType type) {
  return exprs_.Simplified({.op = ExprOp::kReinterpret, .dtype = type, .arg_count = 1, .args = {value}});
}

ExprId Nibbles::Decoded(ExprId code, DType type) {
  if (type != DType::kF4E2M1) return exprs_.Cast(type, code);
  // The exponents of the two formats differ by 6, and 0.5 is the only number of f4e2m1 without a leading one.
  const ExprId magnitude = And(code, 7);
  const ExprId whole = Left(exprs_.Add(magnitude, Byte(12)), 2), small = exprs_.Mul(magnitude, Byte(kSteps[1].bits));
  const ExprId bits = exprs_.Select(exprs_.Make(ExprOp::kGe, {magnitude, Byte(2)}), whole, small);
  return Bits(Or(bits, Left(And(code, 8), 4)), DType::kF8E4M3);
}

ExprId Nibbles::Encoded(ExprId value, DType type) {
  if (type != DType::kF4E2M1) return And(exprs_.Cast(DType::kU8, value), 15);
  const ExprId bits = Bits(value, DType::kU8), magnitude = And(bits, 0x7f);
  const ExprId whole = exprs_.Sub(Right(magnitude, 2), Byte(12)), small = Right(magnitude, 5);
  const ExprId code = exprs_.Select(exprs_.Make(ExprOp::kGe, {magnitude, Byte(kSteps[2].bits)}), whole, small);
  return Or(code, And(Right(bits, 4), 8));
}

ExprId Nibbles::Float(double value) { return exprs_.Float(std::isnan(value) ? 6.0 : ir::RoundTo(DType::kF4E2M1, value), DType::kF8E4M3); }

ExprId Nibbles::Rounded(ExprId value) {
  if (!ir::IsFloat(exprs_.Type(value)) || ir::Bits(exprs_.Type(value)) < 32)  // what has no f32 is beyond 6 by far
    value = exprs_.Cast(DType::kF32, value);
  const DType type = exprs_.Type(value);
  const ExprId magnitude = exprs_.Make(ExprOp::kAbs, {value});
  ExprId bits = Byte(kMost);
  for (size_t i = kSteps.size(); i-- > 0;) {
    const ExprOp below = kSteps[i].inclusive ? ExprOp::kLe : ExprOp::kLt;
    bits = exprs_.Select(exprs_.Make(below, {magnitude, exprs_.Float(kSteps[i].most, type)}), Byte(kSteps[i].bits), bits);
  }
  const DType word = type == DType::kF64 ? DType::kI64 : DType::kI32;
  const ExprId negative = exprs_.Make(ExprOp::kLt, {Bits(value, word), exprs_.Int(0, word)});
  const ExprId number = exprs_.Make(ExprOp::kNot, {exprs_.Make(ExprOp::kIsNan, {value})});
  const ExprId sign = exprs_.Select(exprs_.Make(ExprOp::kAnd, {negative, number}), Byte(0x80), Byte(0));
  return Bits(Or(bits, sign), DType::kF8E4M3);
}

double Nibbles::BytePair(DType type, double value) const {
  int64_t code;
  if (type == DType::kF4E2M1) {
    const double rounded = std::isnan(value) ? 6.0 : ir::RoundTo(type, value), magnitude = std::fabs(rounded);
    const int64_t twice = int64_t(magnitude * 2);
    code = (twice <= 4 ? twice : twice == 6 ? 5 : twice == 8 ? 6 : 7) | (std::signbit(rounded) ? 8 : 0);
  } else {
    code = ir::SaturateTo(type, value) & 15;
  }
  return double(code * 17);
}

}  // namespace kiln::compiler
