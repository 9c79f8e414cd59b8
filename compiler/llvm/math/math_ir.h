// SPDX-License-Identifier: Apache-2.0
//
// Formulas as they are written: a value with its builder and the usual operators. For math_*.cc only.
#pragma once

#include <iterator>

#include "compiler/llvm/math/math.h"

namespace kiln::llvm_ir {

using Builder = llvm::IRBuilderBase;

struct Num {
  Builder* b;
  llvm::Value* v;

  llvm::Type* type() const { return v->getType(); }
  Num With(llvm::Value* other) const { return {b, other}; }
  Num Const(double c) const { return With(llvm::ConstantFP::get(type(), c)); }
  Num Int(uint64_t c) const { return With(llvm::ConstantInt::get(type(), c)); }
  Num Inf() const { return With(llvm::ConstantFP::getInfinity(type())); }
  Num NaN() const { return With(llvm::ConstantFP::getNaN(type())); }

  // Bits as an integer of the same width, and back; conversions of value.
  Num Bits() const { return With(b->CreateBitCast(v, b->getIntNTy(type()->getPrimitiveSizeInBits().getFixedValue()))); }
  Num AsF32() const { return With(b->CreateBitCast(v, b->getFloatTy())); }
  Num AsF64() const { return With(b->CreateBitCast(v, b->getDoubleTy())); }
  Num ToF32() const { return With(type()->isIntegerTy() ? b->CreateSIToFP(v, b->getFloatTy()) : b->CreateFPTrunc(v, b->getFloatTy())); }
  Num ToF64() const { return With(type()->isIntegerTy() ? b->CreateSIToFP(v, b->getDoubleTy()) : b->CreateFPExt(v, b->getDoubleTy())); }
  // Needs a value in i32's range.
  Num ToI32() const { return With(b->CreateFPToSI(v, b->getInt32Ty())); }
  Num SExt64() const { return With(b->CreateSExt(v, b->getInt64Ty())); }
  Num Trunc32() const { return With(b->CreateTrunc(v, b->getInt32Ty())); }

  Num Shl(unsigned n) const { return With(b->CreateShl(v, n)); }
  Num LShr(unsigned n) const { return With(b->CreateLShr(v, n)); }
  Num AShr(unsigned n) const { return With(b->CreateAShr(v, n)); }
  Num And(uint64_t c) const { return With(b->CreateAnd(v, c)); }
};

inline bool IsFp(const Num& a) { return a.type()->isFloatingPointTy(); }
inline Num operator+(Num x, Num y) { return x.With(IsFp(x) ? x.b->CreateFAdd(x.v, y.v) : x.b->CreateAdd(x.v, y.v)); }
inline Num operator-(Num x, Num y) { return x.With(IsFp(x) ? x.b->CreateFSub(x.v, y.v) : x.b->CreateSub(x.v, y.v)); }
inline Num operator*(Num x, Num y) { return x.With(IsFp(x) ? x.b->CreateFMul(x.v, y.v) : x.b->CreateMul(x.v, y.v)); }
inline Num operator/(Num x, Num y) { return x.With(x.b->CreateFDiv(x.v, y.v)); }
inline Num operator-(Num x) { return x.With(x.b->CreateFNeg(x.v)); }
inline Num operator+(Num x, double c) { return x + x.Const(c); }
inline Num operator-(Num x, double c) { return x - x.Const(c); }
inline Num operator*(Num x, double c) { return x * x.Const(c); }
inline Num operator+(double c, Num x) { return x.Const(c) + x; }
inline Num operator-(double c, Num x) { return x.Const(c) - x; }
inline Num operator*(double c, Num x) { return x.Const(c) * x; }
inline Num operator/(double c, Num x) { return x.Const(c) / x; }

// Comparisons are ordered: false where one side is NaN.
inline Num operator<(Num x, Num y) { return x.With(IsFp(x) ? x.b->CreateFCmpOLT(x.v, y.v) : x.b->CreateICmpSLT(x.v, y.v)); }
inline Num operator<(Num x, double c) { return x < x.Const(c); }
inline Num operator>(Num x, double c) { return x.Const(c) < x; }
inline Num Equal(Num x, Num y) { return x.With(IsFp(x) ? x.b->CreateFCmpOEQ(x.v, y.v) : x.b->CreateICmpEQ(x.v, y.v)); }
inline Num Equal(Num x, double c) { return Equal(x, x.Const(c)); }
inline Num IsNaN(Num x) { return x.With(x.b->CreateFCmpUNO(x.v, x.v)); }
inline Num operator&(Num x, Num y) { return x.With(x.b->CreateAnd(x.v, y.v)); }
inline Num operator|(Num x, Num y) { return x.With(x.b->CreateOr(x.v, y.v)); }
inline Num operator^(Num x, Num y) { return x.With(x.b->CreateXor(x.v, y.v)); }
inline Num operator!(Num x) { return x.With(x.b->CreateNot(x.v)); }
inline Num Select(Num c, Num x, Num y) { return c.With(c.b->CreateSelect(c.v, x.v, y.v)); }
inline Num Fma(Num x, Num y, Num z) { return x.With(x.b->CreateIntrinsic(llvm::Intrinsic::fma, {x.type()}, {x.v, y.v, z.v})); }
inline Num Fma(Num x, double y, Num z) { return Fma(x, x.Const(y), z); }
inline Num Abs(Num x) { return x.With(x.b->CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x.v)); }
inline Num Rint(Num x) { return x.With(x.b->CreateUnaryIntrinsic(llvm::Intrinsic::rint, x.v)); }
inline Num TruncateFp(Num x) { return x.With(x.b->CreateUnaryIntrinsic(llvm::Intrinsic::trunc, x.v)); }
inline Num CopySign(Num magnitude, Num sign) { return sign.With(sign.b->CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude.v, sign.v)); }

// Horner's scheme, least power first.
template <size_t N>
Num Polynomial(Num x, const double (&c)[N]) {
  Num sum = x.Const(c[N - 1]);
  for (size_t i = N - 1; i-- > 0;) sum = Fma(sum, x, x.Const(c[i]));
  return sum;
}

// math_f32.cc and math_f64.cc. `flush`: f32 subnormals may be read and written as zero. `y` only for kPow.
Num MathF32(const NativeMath& native, ir::ExprOp op, Num x, Num y, bool flush);
Num FastMathF32(const NativeMath& native, ir::ExprOp op, Num x, Num y);
Num MathF64(const NativeMath& native, ir::ExprOp op, Num x, Num y);

// x^y with IEEE 754-2019 9.2.1's cases of zeros, infinities, NaN and negative x. `finite` is |x|^y, where |x| is 0, infinite or NaN that of some
// positive number instead; it is right for infinite y unless |x| is 1, and NaN where y is.
Num PowSpecial(Num x, Num y, Num finite);

// x - y · n for the whole n towards zero: exact, as C's fmod (in a kernel that flushes f32 subnormals, these are 0); NaN where x is infinite or
// y 0. A division and a few operations where x / y is below 2^22 (f64: 2^50), as much again for each further 22 (50) bits of it.
Num Remainder(Num x, Num y);

// An angle of any size: `r` in [-π/4, π/4] and the quadrant's number modulo 4, x = quadrant · π/2 + r. For |x| ≥ 2^15,
// by the bits of 2/π that matter (Payne and Hanek, "Radian reduction for trigonometric functions"); NaN for infinities.
struct Angle {
  Num r;
  Num quadrant;  // i32
};
Angle ReduceLarge(const NativeMath& native, Num x);

}  // namespace kiln::llvm_ir
