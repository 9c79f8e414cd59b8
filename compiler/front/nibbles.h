// SPDX-License-Identifier: Apache-2.0
//
// Expressions for values of 4 bits: i4 and u4, and f4e2m1, for which an f8e4m3 of the same value stands.
#pragma once

#include <optional>

#include "ir/expr/expr.h"

namespace kiln::compiler {

class Nibbles {
 public:
  explicit Nibbles(ir::ExprPool& exprs) : exprs_(exprs) {}

  ir::ExprId Half(ir::ExprId index);  // rounded down
  // The bits of element `index` in a byte that holds it, as u8.
  ir::ExprId Of(ir::ExprId byte, ir::ExprId index);
  // The byte with these bits for element `index`.
  ir::ExprId With(ir::ExprId byte, ir::ExprId index, ir::ExprId code);
  ir::ExprId Pair(ir::ExprId low, ir::ExprId high);

  // The value of `type` that four bits of a u8 stand for, and back.
  ir::ExprId Decoded(ir::ExprId code, ir::DType type);
  ir::ExprId Encoded(ir::ExprId value, ir::DType type);

  ir::ExprId Float(double value);  // a constant of f4e2m1
  // Any number as a f4e2m1: to nearest even, at most 6 in magnitude; NaN gives 6.
  ir::ExprId Rounded(ir::ExprId value);
  // The byte of two elements that are both `value`.
  double BytePair(ir::DType type, double value) const;

 private:
  ir::ExprId Byte(int64_t value) { return exprs_.Int(value, ir::DType::kU8); }
  ir::ExprId And(ir::ExprId a, int64_t mask) { return exprs_.Make(ir::ExprOp::kBitAnd, {a, Byte(mask)}); }
  ir::ExprId Or(ir::ExprId a, ir::ExprId b) { return exprs_.Make(ir::ExprOp::kBitOr, {a, b}); }
  ir::ExprId Left(ir::ExprId a, int64_t count) { return exprs_.Make(ir::ExprOp::kShl, {a, Byte(count)}); }
  ir::ExprId Right(ir::ExprId a, int64_t count) { return exprs_.Make(ir::ExprOp::kShr, {a, Byte(count)}); }
  ir::ExprId Bits(ir::ExprId value, ir::DType type);
  std::optional<ir::ExprId> ExactHalf(ir::ExprId index);  // of what is even as it is written
  ir::ExprId Odd(ir::ExprId index);                       // 1 or 0
  ir::ExprId Shift(ir::ExprId index);

  ir::ExprPool& exprs_;
};

}  // namespace kiln::compiler
