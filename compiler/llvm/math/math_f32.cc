// SPDX-License-Identifier: Apache-2.0
//
// f32. The bounds in units in the last place are those math_test.cc holds the functions to, with an Exp2 hook as exact
// as the plain path's; a family's own Exp2 adds its error (2 ulp at most) to exp2, exp, tanh, sigmoid and pow.
#include <cmath>

#include "compiler/llvm/math/math_coefficients.h"
#include "compiler/llvm/math/math_ir.h"

namespace kiln::llvm_ir {
namespace {

using ir::ExprOp;

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

// x · 2^n for n in [-252, 254], rounding at most once more than exact where the result is subnormal.
Num Scale(Num x, Num n) {
  const Num half = n.AShr(1);
  const auto power = [](Num k) { return (k + k.Int(127)).Shl(23).AsF32(); };
  return x * power(half) * power(n - half);
}

// tanh of |x| < kNearTanh.
constexpr double kNearTanh = 0.55;
Num NearTanh(Num x) {
  const Num z = x * x;
  return Fma(x * z, Polynomial(z, kTanhF32), x);
}

class F32 {
 public:
  F32(const NativeMath& native, bool flush) : native_(native), flush_(flush) {}

  // 2 ulp.
  Num Exp2(Num x) { return Exp2(x, flush_); }
  Num Exp2(Num x, bool flush) {
    if (llvm::Value* v = native_.Exp2(*x.b, x.v, flush)) return x.With(v);
    const Num bounded = Select(x > 160, x.Const(160), Select(x < -160, x.Const(-160), x));
    const Num n = Rint(bounded);
    const Num whole = Select(IsNaN(x), x.Const(0), n);
    return Select(IsNaN(x), x, Scale(Polynomial(bounded - n, kExp2F32), whole.ToI32()));
  }

  // 2^(high + low) for |low| far below 1. The term in `low` is left out where 2^high is infinite or zero.
  Num Exp2OfSum(Num high, Num low) {
    const Num e = Exp2(high);
    const Num corrected = Fma(e, low * kLn2, e);
    return Select((high < 128) & (high > -150), corrected, e);
  }

  // 2 ulp.
  Num Exp(Num x) {
    const Num high = x * kLog2E;
    const Num low = Fma(x, 1.9259629911266175e-08, Fma(x, 1.4426950216293335, -high));
    return Exp2OfSum(high, low);
  }

  // The exponent e and f = m - 1 of x = 2^e · m, m in [√½, √2).
  struct Split {
    Num e, f;
  };
  Split SplitExponent(Num x) {
    const Num small = x < 0x1p-126;
    const Num bits = Select(small, x * 0x1p23, x).Bits();
    const Num e = (bits - bits.Int(0x3f3504f3)).AShr(23);
    const Num m = (bits - e.Shl(23)).AsF32();
    return {(e - Select(small, e.Int(23), e.Int(0))).ToF32(), m - 1};
  }

  Num LogSpecial(Num x, Num result) {
    result = Select(Equal(x, 0), -x.Inf(), result);
    result = Select(x < 0, x.NaN(), result);
    return Select(x < x.Inf(), result, x) /* +∞ and NaN are their own */;
  }

  // 2 ulp.
  Num Log(Num x) {
    const auto [e, f] = SplitExponent(x);
    const Num tail = (f * f) * Polynomial(f, kLogTailF32);
    const Num low = Fma(e, 1.4286068203094173e-06, tail);
    const Num log = Fma(e, 0.693145751953125, f + low);
    return LogSpecial(x, log);
  }

  // 2 ulp.
  Num Log2(Num x) {
    const auto [e, f] = SplitExponent(x);
    const Num tail = (f * f) * Polynomial(f, kLogTailF32);
    const Num low = Fma(f, 1.9259629911266175e-08, tail * kLog2E);
    return LogSpecial(x, e + Fma(f, 1.4426950216293335, low));
  }

  // 2 ulp.
  Num SinCos(Num x, bool cosine) {
    llvm::CallInst* reduced = x.b->CreateCall(Reduction(x), {x.v});
    return OfQuadrant({x.With(x.b->CreateExtractValue(reduced, 0)), x.With(x.b->CreateExtractValue(reduced, 1))}, cosine);
  }

  // The module's function that reduces an angle to {r, quadrant}. It is inlined behind the passes that find equal calls, so that sine and cosine
  // of one angle reduce it once. Cody and Waite's reduction is exact to |x| = 2^15; above it, Payne and Hanek's.
  llvm::Function* Reduction(Num x) {
    constexpr const char* kName = "kiln.reduced_angle";
    Builder& outer = *x.b;
    llvm::Module& module = *outer.GetInsertBlock()->getModule();
    if (llvm::Function* known = module.getFunction(kName)) return known;
    auto* result = llvm::StructType::get(outer.getFloatTy(), outer.getInt32Ty());
    auto* type = llvm::FunctionType::get(result, {outer.getFloatTy()}, false);
    llvm::Function* function = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kName, module);
    for (const auto attribute : {llvm::Attribute::AlwaysInline, llvm::Attribute::NoUnwind, llvm::Attribute::WillReturn})
      function->addFnAttr(attribute);
    function->setDoesNotAccessMemory();  // but a constant table
    const auto block = [&](const char* name) { return llvm::BasicBlock::Create(module.getContext(), name, function); };
    llvm::BasicBlock *entry = block("entry"), *small = block("small"), *large = block("large");
    llvm::IRBuilder<> b(entry);
    const Num angle{&b, function->getArg(0)};
    b.CreateCondBr((Abs(angle) < 0x1p15).v, small, large);
    const auto give = [&](Num r, Num quadrant) {
      llvm::Value* const parts[] = {r.v, quadrant.v};
      b.CreateAggregateRet(parts, 2);
    };
    b.SetInsertPoint(small);
    const Angle near = ReduceSmall(angle);
    give(near.r, near.quadrant);
    b.SetInsertPoint(large);
    const Angle far = ReduceLarge(native_, angle.ToF64());
    give(far.r.ToF32(), far.quadrant);
    return function;
  }

  // The sum with 1.5 · 2^23 rounds to a whole number, which its last bits are.
  static Angle ReduceSmall(Num x) {
    constexpr double kWhole = 0x1.8p23;
    const Num shifted = Fma(x, 0.6366197723675814, x.Const(kWhole));
    const Num k = shifted - kWhole;
    Num r = Fma(k, -1.570796251296997, x);
    r = Fma(k, -7.549789415861596e-08, r);
    r = Fma(k, -5.390302858158119e-15, r);
    return {r, shifted.Bits()};
  }

  Num OfQuadrant(Angle angle, bool cosine) {
    const Num r = angle.r, z = r * r;
    const Num sin = Fma(r * z, Polynomial(z, kSinF32), r);
    const Num cos = Fma(z * z, Polynomial(z, kCosF32), Fma(z, -0.5, z.Const(1)));
    const Num q = cosine ? angle.quadrant + angle.quadrant.Int(1) : angle.quadrant;
    const Num zero = q.Int(0);
    const Num value = Select(Equal(q.And(1), zero), sin, cos);
    return Select(Equal(q.And(2), zero), value, -value);
  }

  // 3 ulp.
  Num Tanh(Num x) {
    const Num a = Abs(x), near = NearTanh(x);
    const Num far = 1.0 - 2.0 / (Exp(a + a) + 1);
    return Select(IsNaN(x), x, Select(a < kNearTanh, near, CopySign(far, x)));
  }

  // 2 ulp.
  Num Erf(Num x) {
    const Num a = Abs(x), z = x * x;
    const Num near = Fma(x, Polynomial(z, kErfSmallF32), x);
    const Num far = 1.0 - Exp2(Polynomial(a, kErfLargeF32), true);
    return Select(a < 0.92, near, CopySign(far, x));
  }

  // 4 ulp; below -88 the result may be zero where the true one is subnormal.
  Num Sigmoid(Num x) { return 1.0 / (Exp(-x) + 1); }

  // 3 ulp: log2 |x| in f64, of which 2^-34 is enough for the largest exponents, then as a sum of two f32.
  Num Pow(Num x, Num y) {
    const auto [e, f] = SplitExponent(Abs(x));
    const Num wide = f.ToF64();
    const Num log2 = Fma(wide, Polynomial(wide, kLogF64ForF32), e.ToF64());
    const Num first = log2.ToF32(), rest = (log2 - first.ToF64()).ToF32();
    const Num product = y * first, error = Fma(y, rest, Fma(y, first, -product));
    // Exponents that round up to 128 may still give a finite result.
    const Num at_end = Equal(product, 128);
    const Num high = Select(at_end, x.Const(128 - 0x1p-17), product), low = Select(at_end, error + 0x1p-17, error);
    return PowSpecial(x, y, Exp2OfSum(high, low));
  }

 private:
  const NativeMath& native_;
  bool flush_;
};

}  // namespace

Num MathF32(const NativeMath& native, ExprOp op, Num x, Num y, bool flush) {
  F32 f(native, flush);
  switch (op) {
    case ExprOp::kExp: return f.Exp(x);
    case ExprOp::kExp2: return f.Exp2(x);
    case ExprOp::kLog: return f.Log(x);
    case ExprOp::kLog2: return f.Log2(x);
    case ExprOp::kSin: return f.SinCos(x, false);
    case ExprOp::kCos: return f.SinCos(x, true);
    case ExprOp::kTanh: return f.Tanh(x);
    case ExprOp::kErf: return f.Erf(x);
    case ExprOp::kSigmoid: return f.Sigmoid(x);
    default: return f.Pow(x, y);
  }
}

// Errors are the hooks': about 2^-21 of the result, and of exp and pow besides |exponent| · 2^-23.
Num FastMathF32(const NativeMath& native, ExprOp op, Num x, Num y) {
  Builder& b = *x.b;
  const auto exp2 = [&](Num e) { return MathF32(native, ExprOp::kExp2, e, e, true); };
  const auto or_accurate = [&](llvm::Value* v) { return v != nullptr ? x.With(v) : MathF32(native, op, x, y, true); };
  const auto reciprocal = [&](Num d) {
    llvm::Value* v = native.FastReciprocal(b, d.v);
    return v != nullptr ? x.With(v) : 1.0 / d;
  };
  llvm::Value* log2 = nullptr;
  switch (op) {
    case ExprOp::kExp2: return exp2(x);
    case ExprOp::kExp: return exp2(x * kLog2E);
    case ExprOp::kLog2: return or_accurate(native.FastLog2(b, x.v));
    case ExprOp::kLog: log2 = native.FastLog2(b, x.v); return log2 != nullptr ? x.With(log2) * kLn2 : or_accurate(nullptr);
    case ExprOp::kSin: return or_accurate(native.FastSin(b, x.v));
    case ExprOp::kCos: return or_accurate(native.FastCos(b, x.v));
    case ExprOp::kTanh: {
      if (llvm::Value* v = native.FastTanh(b, x.v)) return x.With(v);
      const Num a = Abs(x), near = NearTanh(x);  // where the difference would lose what it is about
      const Num far = 1.0 - 2.0 * reciprocal(exp2(a * (2 * kLog2E)) + 1);
      return Select(a < kNearTanh, near, CopySign(far, x));
    }
    case ExprOp::kSigmoid: return reciprocal(exp2(x * -kLog2E) + 1);
    case ExprOp::kPow:
      log2 = native.FastLog2(b, Abs(x).v);
      // Of 0 and of infinity it is infinite, and 0 times that is no number.
      return log2 != nullptr ? PowSpecial(x, y, Select(Equal(y, 0), x.Const(1), exp2(y * x.With(log2)))) : or_accurate(nullptr);
    default: return or_accurate(nullptr);
  }
}

}  // namespace kiln::llvm_ir
