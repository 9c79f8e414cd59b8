// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/device/convert.h"

#include <cmath>

#include "compiler/llvm/device/device.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using llvm::Value;
using Builder = llvm::IRBuilderBase;

// An 8-bit float: `mantissa` bits below the exponent's, which is biased by `bias`. FNUZ: one NaN, 0x80, no infinity and
// no negative zero. OCP e4m3 has no infinity and the NaNs 0x7f and 0xff; e5m2 is IEEE's.
struct Fp8 {
  int mantissa;
  int bias;
  bool fnuz;
  uint8_t largest;
};

Fp8 Format(DType type) {
  switch (type) {
    case DType::kF8E4M3: return {3, 7, false, 0x7e};
    case DType::kF8E5M2: return {2, 15, false, 0x7b};
    case DType::kF8E4M3FNUZ: return {3, 8, true, 0x7f};
    default: return {2, 16, true, 0x7f};
  }
}

class Converter {
 public:
  Converter(Builder& builder, const NativeConvert& native) : b_(builder), native_(native) {}

  Value* Convert(Value* v, DType from, DType to) {
    if (from == to) return v;
    if (to == DType::kBool) return ToBool(v, from);
    if (from == DType::kBool) return FromBool(v, to);
    if (ir::IsInteger(from)) return ir::IsInteger(to) ? IntegerToInteger(v, from, to) : IntegerToFloat(v, from, to);
    return ir::IsInteger(to) ? FloatToInteger(v, from, to) : FloatToFloat(v, from, to);
  }

 private:
  Value* ToBool(Value* v, DType from) {
    if (ir::IsInteger(from)) return b_.CreateICmpNE(v, llvm::ConstantInt::get(v->getType(), 0));
    if (ir::IsFp8(from)) v = WidenFp8(v, from);
    return b_.CreateFCmpUNE(v, llvm::ConstantFP::get(v->getType(), 0));
  }

  Value* FromBool(Value* v, DType to) {
    if (ir::IsInteger(to)) return b_.CreateZExt(v, Type(to));
    llvm::Constant* one = ir::IsFp8(to) ? static_cast<llvm::Constant*>(b_.getInt8(OneOf(to))) : llvm::ConstantFP::get(Type(to), 1);
    return b_.CreateSelect(v, one, llvm::Constant::getNullValue(Type(to)));
  }

  static uint8_t OneOf(DType fp8) { return uint8_t(Format(fp8).bias << Format(fp8).mantissa); }

  Value* IntegerToInteger(Value* v, DType from, DType to) { return b_.CreateIntCast(v, Type(to), ir::IsSigned(from)); }

  Value* IntegerToFloat(Value* v, DType from, DType to) {
    const bool is_signed = ir::IsSigned(from);
    const int bits = ir::Bits(from);
    if (to == DType::kF64 || to == DType::kF32) return Number(v, to, is_signed);
    // Integers of up to 24 bits are exact in f32, so only the second step rounds.
    if (bits <= 16) return FloatToFloat(Number(v, DType::kF32, is_signed), DType::kF32, to);
    if (to == DType::kTF32 || to == DType::kBF16) {
      if (bits == 64) v = StickyTo51Bits(v, is_signed);
      return FloatToFloat(Number(v, DType::kF64, is_signed), DType::kF64, to);
    }
    return FloatToFloat(Number(Clamped(v, is_signed), DType::kF32, true), DType::kF32, to);
  }

  Value* Number(Value* v, DType to, bool is_signed) { return is_signed ? b_.CreateSIToFP(v, Type(to)) : b_.CreateUIToFP(v, Type(to)); }

  // f16 and fp8 are infinite or saturated long before ±2^17.
  Value* Clamped(Value* v, bool is_signed) {
    llvm::Constant* limit = llvm::ConstantInt::get(v->getType(), 1 << 17);
    v = b_.CreateBinaryIntrinsic(is_signed ? llvm::Intrinsic::smin : llvm::Intrinsic::umin, v, limit);
    if (is_signed) v = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, v, llvm::ConstantExpr::getNeg(limit));
    return b_.CreateTrunc(v, b_.getInt32Ty());
  }

  // An integer that f64 holds exactly and that rounds to 24 bits or fewer as `v` does: large values have their low 13
  // bits replaced by one that says whether any was set.
  Value* StickyTo51Bits(Value* v, bool is_signed) {
    Value* magnitude = is_signed ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::abs, v, b_.getFalse()) : v;
    Value* low = b_.CreateAnd(v, b_.getInt64(0x1fff));
    Value* sticky = b_.CreateSelect(b_.CreateICmpNE(low, b_.getInt64(0)), b_.getInt64(0x2000), b_.getInt64(0));
    Value* rounded = b_.CreateOr(b_.CreateAnd(v, b_.getInt64(~uint64_t{0x1fff})), sticky);
    return b_.CreateSelect(b_.CreateICmpULT(magnitude, b_.getInt64(uint64_t{1} << 52)), v, rounded);
  }

  Value* FloatToInteger(Value* v, DType from, DType to) {
    if (from == DType::kBF16 || from == DType::kF16 || ir::IsFp8(from)) v = FloatToFloat(v, from, DType::kF32);
    return b_.CreateIntrinsic(ir::IsSigned(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat, {Type(to), v->getType()}, {v});
  }

  Value* FloatToFloat(Value* v, DType from, DType to) {
    if (from == to) return v;
    if (ir::IsFp8(from)) return FloatToFloat(WidenFp8(v, from), DType::kF32, to);
    if (ir::IsFp8(to)) return NarrowFp8(from == DType::kF64 ? RoundToOdd(v) : FloatToFloat(v, from, DType::kF32), to);
    if (to == DType::kTF32) {
      if (from == DType::kF64) return RoundTf32(RoundToOdd(v));
      return from == DType::kF32 ? RoundTf32(v) : b_.CreateFPExt(v, Type(to));
    }
    if (from == DType::kF64 && to == DType::kBF16) return b_.CreateFPTrunc(RoundToOdd(v), Type(to));
    if (ir::Bits(from) == ir::Bits(to)) {  // f16 and bf16, tf32 and f32
      return ir::Bits(from) == 32 ? v : b_.CreateFPTrunc(b_.CreateFPExt(v, b_.getFloatTy()), Type(to));
    }
    return b_.CreateFPCast(v, Type(to));
  }

  // f64 → f32 such that rounding the result to 22 bits of precision or fewer equals rounding `v`: where inexact, the
  // neighbour whose last bit is set (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
  Value* RoundToOdd(Value* v) {
    Value* near = b_.CreateFPTrunc(v, b_.getFloatTy());
    Value* back = b_.CreateFPExt(near, b_.getDoubleTy());
    Value* bits = b_.CreateBitCast(near, b_.getInt32Ty());
    Value* above = b_.CreateFCmpOGT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, back), b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v));
    Value* truncated = b_.CreateSub(bits, b_.CreateZExt(above, b_.getInt32Ty()));
    Value* odd = b_.CreateBitCast(b_.CreateOr(truncated, b_.getInt32(1)), b_.getFloatTy());
    return b_.CreateSelect(b_.CreateFCmpONE(back, v), odd, near);
  }

  Value* RoundTf32(Value* v) {
    if (Value* native = native_.RoundTf32(b_, v)) return native;
    Value* bits = b_.CreateBitCast(v, b_.getInt32Ty());
    Value* last = b_.CreateAnd(b_.CreateLShr(bits, 13), b_.getInt32(1));
    Value* rounded = b_.CreateAdd(bits, b_.CreateAdd(last, b_.getInt32(0xfff)));
    rounded = b_.CreateBitCast(b_.CreateAnd(rounded, b_.getInt32(~0x1fffu)), b_.getFloatTy());
    return b_.CreateSelect(b_.CreateFCmpUNO(v, v), llvm::ConstantFP::getNaN(b_.getFloatTy()), rounded);
  }

  // Computes without f32 subnormals, because a kernel may flush them.
  Value* WidenFp8(Value* v, DType from) {
    if (Value* native = native_.WidenFp8(b_, v, from)) return native;
    const Fp8 f = Format(from);
    Value* code = b_.CreateZExt(v, b_.getInt32Ty());
    Value* magnitude = b_.CreateAnd(code, b_.getInt32(0x7f));
    Value* shifted = b_.CreateShl(magnitude, uint64_t(23 - f.mantissa));
    Value* normal = b_.CreateBitCast(b_.CreateAdd(shifted, b_.getInt32(uint32_t(127 - f.bias) << 23)), b_.getFloatTy());
    Value* subnormal = b_.CreateFMul(b_.CreateUIToFP(magnitude, b_.getFloatTy()), F32(std::ldexp(1.0, 1 - f.bias - f.mantissa)));
    Value* is_normal = b_.CreateICmpUGE(magnitude, b_.getInt32(1u << f.mantissa));
    Value* bits = b_.CreateBitCast(b_.CreateSelect(is_normal, normal, subnormal), b_.getInt32Ty());
    bits = b_.CreateSelect(IsSpecial(f, code, magnitude), SpecialBits(f, magnitude), bits);
    Value* sign = b_.CreateShl(b_.CreateAnd(code, b_.getInt32(0x80)), 24);
    return b_.CreateBitCast(b_.CreateOr(bits, sign), b_.getFloatTy());
  }

  // NaN, and e5m2's infinity.
  Value* IsSpecial(const Fp8& f, Value* code, Value* magnitude) {
    if (f.fnuz) return b_.CreateICmpEQ(code, b_.getInt32(0x80));
    return b_.CreateICmpUGT(magnitude, b_.getInt32(f.largest));
  }
  Value* SpecialBits(const Fp8& f, Value* magnitude) {
    llvm::Constant* nan = b_.getInt32(0x7fc00000);
    if (f.fnuz || f.mantissa == 3) return nan;
    return b_.CreateSelect(b_.CreateICmpEQ(magnitude, b_.getInt32(0x7c)), b_.getInt32(0x7f800000), nan);
  }

  Value* NarrowFp8(Value* v, DType to) {
    if (Value* native = native_.NarrowFp8(b_, v, to)) return native;
    const Fp8 f = Format(to);
    const uint32_t bias = uint32_t(127 - f.bias) << f.mantissa;
    const int shift = 23 - f.mantissa;
    Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v);
    magnitude = b_.CreateSelect(b_.CreateFCmpOGT(magnitude, F32(LargestFp8(to))), F32(LargestFp8(to)), magnitude);
    Value* bits = b_.CreateBitCast(magnitude, b_.getInt32Ty());
    Value* last = b_.CreateAnd(b_.CreateLShr(bits, uint64_t(shift)), b_.getInt32(1));
    Value* rounded = b_.CreateAdd(bits, b_.CreateAdd(last, b_.getInt32((1u << (shift - 1)) - 1)));
    Value* normal = b_.CreateSub(b_.CreateLShr(rounded, uint64_t(shift)), b_.getInt32(bias));
    // Adding 2^23 quanta rounds to a whole number of them.
    llvm::Constant* quanta = F32(std::ldexp(1.0, 23 + 1 - f.bias - f.mantissa));
    Value* sum = b_.CreateBitCast(b_.CreateFAdd(magnitude, quanta), b_.getInt32Ty());
    Value* subnormal = b_.CreateSub(sum, b_.CreateBitCast(quanta, b_.getInt32Ty()));
    Value* is_normal = b_.CreateFCmpOGE(magnitude, F32(std::ldexp(1.0, 1 - f.bias)));
    Value* code = b_.CreateSelect(is_normal, normal, subnormal);
    Value* sign = b_.CreateAnd(b_.CreateLShr(b_.CreateBitCast(v, b_.getInt32Ty()), 24), b_.getInt32(0x80));
    if (f.fnuz) sign = b_.CreateSelect(b_.CreateICmpEQ(code, b_.getInt32(0)), b_.getInt32(0), sign);
    Value* result = b_.CreateOr(code, sign);
    result = b_.CreateSelect(b_.CreateFCmpUNO(v, v), b_.getInt32(f.fnuz ? 0x80 : 0x7f), result);
    return b_.CreateTrunc(result, b_.getInt8Ty());
  }

  llvm::Type* Type(DType type) { return ValueType(b_.getContext(), type); }
  llvm::Constant* F32(double value) { return llvm::ConstantFP::get(b_.getFloatTy(), value); }

  Builder& b_;
  const NativeConvert& native_;
};

}  // namespace

double LargestFp8(DType type) {
  const Fp8 f = Format(type);
  const int mantissa = f.largest & ((1 << f.mantissa) - 1);
  return std::ldexp((1 << f.mantissa) + mantissa, (f.largest >> f.mantissa) - f.bias - f.mantissa);
}

llvm::Value* BuildConvert(Builder& builder, const NativeConvert& native, Value* v, DType from, DType to) {
  // A reduction to nearest must not become something else under the caller's fast-math flags.
  llvm::IRBuilderBase::FastMathFlagGuard guard(builder);
  builder.clearFastMathFlags();
  return Converter(builder, native).Convert(v, from, to);
}

}  // namespace kiln::llvm_ir
