// SPDX-License-Identifier: Apache-2.0
//
// Scalar expressions of a tile program (clients/cpp/builder.h). Numbers take the type of what they meet; other operands must agree in
// type, and Cast converts. What is wrong with an expression is told by Builder::Finish.
//
// Integers wrap (two's complement). `/` and `%` round towards zero, FloorDiv and FloorMod towards minus infinity; by zero they give some
// value and no trap. Shifts take the count modulo the width. Floats follow IEEE 754 with round to nearest even, except under
// Options::fast_math; a product that is added to may be rounded once for both.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace kiln {

// The numbers are the wire's (kiln.v1.DType).
enum class DType : std::uint8_t {
  kBool = 1,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kTF32,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI4,
  kU4,
  kF4E2M1,
};

struct BuilderState;  // inside

// A value; cheap to copy. Lives no longer than the builder of its operands.
class Expr {
 public:
  template <std::integral T>
  Expr(T value) : value_(std::int64_t(value)) {}
  Expr(bool value) : value_(value) {}
  template <std::floating_point T>
  Expr(T value) : value_(double(value)) {}

  std::optional<DType> dtype() const;  // a number has none

 private:
  friend struct BuilderState;
  struct Node {
    BuilderState* state;
    std::uint32_t id;
  };
  struct Broken {
    std::string why;
  };
  template <class Value>
    requires(std::same_as<Value, Node> || std::same_as<Value, Broken>)
  explicit Expr(Value value) : value_(std::move(value)) {}

  std::variant<bool, std::int64_t, double, Node, Broken> value_;
};

Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, const Expr& b);
Expr operator/(const Expr& a, const Expr& b);
Expr operator%(const Expr& a, const Expr& b);
Expr operator-(const Expr& a);
Expr operator&(const Expr& a, const Expr& b);
Expr operator|(const Expr& a, const Expr& b);
Expr operator^(const Expr& a, const Expr& b);
Expr operator~(const Expr& a);
Expr operator<<(const Expr& a, const Expr& b);
Expr operator>>(const Expr& a, const Expr& b);  // arithmetic of signed, logical of unsigned
Expr operator&&(const Expr& a, const Expr& b);  // what the second would load is not loaded where the first settles it
Expr operator||(const Expr& a, const Expr& b);
Expr operator!(const Expr& a);
Expr operator==(const Expr& a, const Expr& b);
Expr operator!=(const Expr& a, const Expr& b);
Expr operator<(const Expr& a, const Expr& b);
Expr operator<=(const Expr& a, const Expr& b);
Expr operator>(const Expr& a, const Expr& b);
Expr operator>=(const Expr& a, const Expr& b);

Expr FloorDiv(const Expr& a, const Expr& b);
Expr FloorMod(const Expr& a, const Expr& b);
Expr CeilDiv(const Expr& a, const Expr& b);  // of positive numbers
Expr Min(const Expr& a, const Expr& b);      // the other where one is NaN
Expr Max(const Expr& a, const Expr& b);
Expr Select(const Expr& condition, const Expr& a, const Expr& b);  // the arm that is not chosen loads nothing
// The element of a tile or tensor where the condition holds, else `other`. Memory is read only where the condition holds.
Expr Masked(const Expr& condition, const Expr& element, const Expr& other);
// Float → integer truncates and saturates, NaN gives 0; float → narrower float rounds to nearest even and, for 8-bit floats, saturates to the
// largest finite value; integer → narrower integer keeps the low bits; number → bool is "not zero".
Expr Cast(DType dtype, const Expr& a);
Expr Reinterpret(DType dtype, const Expr& a);  // the same bits, in a type of the same width

Expr Abs(const Expr& a);
Expr Floor(const Expr& a);
Expr Ceil(const Expr& a);
Expr Round(const Expr& a);  // half to even
Expr Trunc(const Expr& a);
Expr Sqrt(const Expr& a);
Expr Rsqrt(const Expr& a);
Expr Exp(const Expr& a);
Expr Exp2(const Expr& a);
Expr Exp2Ftz(const Expr& a);  // subnormal results may be zero
Expr Log(const Expr& a);
Expr Log2(const Expr& a);
Expr Sin(const Expr& a);
Expr Cos(const Expr& a);
Expr Tanh(const Expr& a);
Expr Erf(const Expr& a);
Expr Sigmoid(const Expr& a);
Expr Pow(const Expr& a, const Expr& b);
Expr DivFull(const Expr& a, const Expr& b);  // a / b within 2 ulp of f32
Expr Fma(const Expr& a, const Expr& b, const Expr& c);
Expr IsNan(const Expr& a);

}  // namespace kiln
