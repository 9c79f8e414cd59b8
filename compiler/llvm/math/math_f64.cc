// SPDX-License-Identifier: Apache-2.0
//
// f64. The bounds in units in the last place are those math_test.cc holds the functions to.
#include "compiler/llvm/math/math_coefficients.h"
#include "compiler/llvm/math/math_ir.h"

namespace kiln::llvm_ir {
namespace {

using ir::ExprOp;

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLog2ELow = 2.0355273740931033e-17;
constexpr double kLn2High = 0.6931471805598903, kLn2Low = 5.497923018708371e-14;

// x · 2^n for n in [-2044, 2046].
Num Scale(Num x, Num n) {
  const Num half = n.AShr(1);
  const auto power = [](Num k) { return (k + k.Int(1023)).SExt64().Shl(52).AsF64(); };
  return x * power(half) * power(n - half);
}

// An unevaluated sum, |low| at most half a unit in the last place of high.
struct Pair {
  Num high, low;
};
Pair FastTwoSum(Num a, Num b) {  // |a| ≥ |b|
  const Num sum = a + b;
  return {sum, b - (sum - a)};
}
// Its rounded product is one of fma: LLVM and ptxas may join a plain one with the sum it goes into, unrounded, and `low` would count twice.
Pair TwoProduct(Num a, Num b) {
  const Num product = Fma(a, b, a.Const(0));
  return {product, Fma(a, b, -product)};
}
Pair Multiply(Pair a, Pair b) {
  const Pair p = TwoProduct(a.high, b.high);
  return FastTwoSum(p.high, p.low + Fma(a.high, b.low, a.low * b.high));
}

Num Bounded(Num x, double limit) { return Select(x > limit, x.Const(limit), Select(x < -limit, x.Const(-limit), x)); }
Num Integer(Num n) { return Select(IsNaN(n), n.Const(0), n).ToI32(); }

// 1 ulp.
Num Exp2(Num x) {
  const Num bounded = Bounded(x, 1100), n = Rint(bounded);
  return Select(IsNaN(x), x, Scale(Polynomial(bounded - n, kExp2F64), Integer(n)));
}

// e^(x + low), |low| far below 1.
Num ExpOfSum(Num x, Num low) {
  const Num bounded = Bounded(x, 800), n = Rint(bounded * kLog2E);
  const Num r = Fma(n, -kLn2Low, Fma(n, -kLn2High, bounded)) + low;
  const Num e = Fma(r * r, Polynomial(r, kExpTailF64), r) + 1;
  return Select(IsNaN(x), x, Scale(e, Integer(n)));
}

// 1 ulp.
Num Exp(Num x) { return ExpOfSum(x, x.Const(0)); }

// x = 2^e · (1 + f), 1 + f in [√½, √2).
struct Split {
  Num e, f;
};
Split SplitExponent(Num x) {
  const Num small = x < 0x1p-1022;
  const Num bits = Select(small, x * 0x1p52, x).Bits();
  const Num e = (bits - bits.Int(0x3fe6a09e667f3bcd)).AShr(52);
  const Num m = (bits - e.Shl(52)).AsF64();
  const Num exponent = e.Trunc32();
  return {(exponent - Select(small, exponent.Int(52), exponent.Int(0))).ToF64(), m - 1};
}

Num LogSpecial(Num x, Num result) {
  result = Select(Equal(x, 0), -x.Inf(), result);
  result = Select(x < 0, x.NaN(), result);
  return Select(x < x.Inf(), result, x);
}

// ln(1 + f) = f + tail.
Num LogTail(Num f) {
  const Num s = f / (f + 2), z = s * s;
  return s * Fma(z, Polynomial(z, kLogRF64), -f);
}

// 1 ulp.
Num Log(Num x) {
  const auto [e, f] = SplitExponent(x);
  return LogSpecial(x, Fma(e, kLn2High, f + Fma(e, kLn2Low, LogTail(f))));
}

// 2 ulp.
Num Log2(Num x) {
  const auto [e, f] = SplitExponent(x);
  const Num low = Fma(f, kLog2ELow, LogTail(f) * kLog2E);
  return LogSpecial(x, e + Fma(f, kLog2E, low));
}

Num OfQuadrant(Angle angle, bool cosine) {
  const Num r = angle.r, z = r * r;
  const Num sin = Fma(r * z, Polynomial(z, kSinF64), r);
  const Num half = z * 0.5, rest = 1.0 - half;
  const Num cos = rest + Fma(z * z, Polynomial(z, kCosF64), (1.0 - rest) - half);
  const Num q = cosine ? angle.quadrant + angle.quadrant.Int(1) : angle.quadrant;
  const Num zero = q.Int(0);
  const Num value = Select(Equal(q.And(1), zero), sin, cos);
  return Select(Equal(q.And(2), zero), value, -value);
}

Angle ReduceSmall(Num x) {
  const Num k = Rint(x * 0.6366197723675814);
  Num r = Fma(k, -1.5707963267948966, x);
  r = Fma(k, -6.123233995736765e-17, r);
  r = Fma(k, -1.082856673921914e-32, r);
  return {r, Select(Abs(k) < 0x1p30, k, k.Const(0)).ToI32()};
}

// 2 ulp.
Num SinCos(const NativeMath& native, Num x, bool cosine) {
  Builder& b = *x.b;
  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* near = b.GetInsertBlock();
  auto* large = llvm::BasicBlock::Create(b.getContext(), "large", function);
  auto* join = llvm::BasicBlock::Create(b.getContext(), "join", function);
  const Angle small = ReduceSmall(x);
  b.CreateCondBr((Abs(x) < 0x1p28).v, join, large);
  b.SetInsertPoint(large);
  const Angle reduced = ReduceLarge(native, x);
  llvm::BasicBlock* large_end = b.GetInsertBlock();
  b.CreateBr(join);
  b.SetInsertPoint(join);
  llvm::PHINode* r = b.CreatePHI(b.getDoubleTy(), 2);
  r->addIncoming(small.r.v, near);
  r->addIncoming(reduced.r.v, large_end);
  llvm::PHINode* quadrant = b.CreatePHI(b.getInt32Ty(), 2);
  quadrant->addIncoming(small.quadrant.v, near);
  quadrant->addIncoming(reduced.quadrant.v, large_end);
  return OfQuadrant({x.With(r), x.With(quadrant)}, cosine);
}

// 3 ulp.
Num Tanh(Num x) {
  const Num a = Abs(x), z = x * x;
  const Num near = Fma(x * z, Polynomial(z, kTanhF64), x);
  const Num far = 1.0 - 2.0 / (Exp(a + a) + 1);
  return Select(IsNaN(x), x, Select(a < 0.55, near, CopySign(far, x)));
}

// 3 ulp.
Num Erf(Num x) {
  const Num a = Abs(x), z = x * x;
  const Num near = Fma(x, Polynomial(z, kErfSmallF64), x);
  const Num bounded = Select(a < 6, a, a.Const(6));
  const Num t = (bounded - 2) / (bounded + 2);
  const Num far = 1.0 - Exp(-(bounded * bounded)) * Polynomial(t, kErfcxF64);
  return Select(IsNaN(x), x, Select(a < 1, near, CopySign(far, x)));
}

// 4 ulp; below -709 the result may be zero where the true one is subnormal.
Num Sigmoid(Num x) { return 1.0 / (Exp(-x) + 1); }

// ln(1 + f) to about 2^-64: 2 s + (2/3) s³ in pairs and the rest, 2^-12 of the whole, in f64.
Pair LogOfOnePlus(Num f) {
  const Num d = f + 2, d_low = f - (d - 2.0);
  const Num s = f / d;
  const Pair quotient = FastTwoSum(s, (Fma(-s, d, f) - s * d_low) / d);
  const Pair z = Multiply(quotient, quotient);
  const Pair cube = Multiply(z, quotient);
  const Pair second = Multiply(cube, {f.Const(0.6666666666666666), f.Const(3.700743415417188e-17)});
  const Num rest = cube.high * z.high * Polynomial(z.high, kLogR2F64);
  const Pair sum = FastTwoSum(quotient.high * 2.0, second.high);
  return FastTwoSum(sum.high, sum.low + (quotient.low * 2.0 + (second.low + rest)));
}

// 2 ulp.
Num Pow(Num x, Num y) {
  const auto [e, f] = SplitExponent(Abs(x));
  const Pair log = LogOfOnePlus(f);
  const Pair log2 = Multiply(log, {x.Const(kLog2E), x.Const(kLog2ELow)});
  const Pair sum = FastTwoSum(e, log2.high);  // e is 0 or above |log2|
  const Pair whole = FastTwoSum(sum.high, sum.low + log2.low);
  // Beyond 2^11 the result is infinite or zero; the bound keeps the product's error term finite.
  const Num exponent = Bounded(y, 0x1p80);
  const Pair product = TwoProduct(exponent, whole.high);
  const Num low = Fma(exponent, whole.low, product.low);
  const Num bounded = Bounded(product.high, 1100), n = Rint(bounded);
  const Num r = (bounded - n) + Select(Abs(product.high) < 1100, low, low.Const(0));
  return PowSpecial(x, y, Scale(Polynomial(r, kExp2F64), Integer(n)));
}

llvm::Value* Table(llvm::Module& module, unsigned space) {
  constexpr const char* kName = "kiln.two_over_pi";
  if (llvm::GlobalVariable* known = module.getNamedGlobal(kName)) return known;
  llvm::Constant* words = llvm::ConstantDataArray::get(module.getContext(), llvm::ArrayRef<uint64_t>(kTwoOverPi));
  return new llvm::GlobalVariable(module, words->getType(), true, llvm::GlobalValue::InternalLinkage, words, kName, nullptr,
                                  llvm::GlobalValue::NotThreadLocal, space);
}

}  // namespace

// |x| = M · 2^E with M of 53 bits. Bits of 2/π above 2^(1-E) only add multiples of 4 quadrants; the next 192 leave,
// times M, a fixed-point number whose top two bits are the quadrant and whose error is 2^-137.
Angle ReduceLarge(const NativeMath& native, Num x) {
  Builder& b = *x.b;
  const Num bits = Abs(x).Bits();
  const Num mantissa = bits.And((uint64_t{1} << 52) - 1) | bits.Int(uint64_t{1} << 52);
  // Table bit i has weight 2^(63 - i): the first that matters is 62 + E. |x| ≥ 2^15 keeps that in the table's zeros or
  // after; infinities and NaN are read as the largest number.
  const Num finite = Abs(x) < x.Inf();
  const Num exponent = Select(finite, bits.LShr(52), bits.Int(2046));
  const Num first = exponent - bits.Int(1075 - 62);
  const Num word = first.LShr(6), shift = first.And(63);
  llvm::Value* table = Table(*b.GetInsertBlock()->getModule(), native.ConstantSpace());
  llvm::Value* w[4];
  for (uint64_t i = 0; i < 4; ++i) {
    w[i] = b.CreateLoad(b.getInt64Ty(), b.CreateGEP(b.getInt64Ty(), table, (word + word.Int(i)).v));
  }
  Num window[3] = {x, x, x};
  for (int i = 0; i < 3; ++i) {
    window[i] = x.With(b.CreateIntrinsic(llvm::Intrinsic::fshl, {b.getInt64Ty()}, {w[i], w[i + 1], shift.v}));
  }
  llvm::Type* wide = b.getInt128Ty();
  const auto zext = [&](Num v) { return v.With(b.CreateZExt(v.v, wide)); };
  const Num m = zext(mantissa);
  const Num low = m * zext(window[2]);
  const Num middle = m * zext(window[1]) + low.LShr(64);
  const Num highest = mantissa * window[0] + x.With(b.CreateTrunc(middle.LShr(64).v, b.getInt64Ty()));
  const Num product = zext(highest).Shl(64) | zext(x.With(b.CreateTrunc(middle.v, b.getInt64Ty())));
  const Num quadrant = (highest + highest.Int(uint64_t{1} << 61)).LShr(62);
  const Num fraction = product.Shl(2);  // signed, of 128 bits: [-1/2, 1/2) quadrants
  const Num high = x.With(b.CreateTrunc(fraction.AShr(64).v, b.getInt64Ty()));
  const Num rest = x.With(b.CreateUIToFP(b.CreateTrunc(fraction.v, b.getInt64Ty()), b.getDoubleTy()));
  const Num top = high.And(~uint64_t{0x7ff}).ToF64() * 0x1p-64;  // exact
  const Num bottom = Fma(rest, 0x1p-128, high.And(0x7ff).ToF64() * 0x1p-64);
  const Num r = Fma(top, 1.5707963267948966, Fma(top, 6.123233995736765e-17, bottom * 1.5707963267948966));
  const Num negative = x < 0;
  const Num q = quadrant.Trunc32();
  return {Select(finite, Select(negative, -r, r), x.NaN()), Select(negative, q.Int(0) - q, q)};
}

Num MathF64(const NativeMath& native, ExprOp op, Num x, Num y) {
  switch (op) {
    case ExprOp::kExp: return Exp(x);
    case ExprOp::kExp2: return Exp2(x);
    case ExprOp::kLog: return Log(x);
    case ExprOp::kLog2: return Log2(x);
    case ExprOp::kSin: return SinCos(native, x, false);
    case ExprOp::kCos: return SinCos(native, x, true);
    case ExprOp::kTanh: return Tanh(x);
    case ExprOp::kErf: return Erf(x);
    case ExprOp::kSigmoid: return Sigmoid(x);
    default: return Pow(x, y);
  }
}

}  // namespace kiln::llvm_ir
