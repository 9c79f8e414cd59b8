// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/matrix/number.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace kiln::emulator {
namespace {

using ir::DType;

struct Format {
  int exponent, mantissa, bias;
  bool fnuz;      // one NaN, in place of −0; no infinity
  bool infinity;  // the largest exponent means infinity or NaN; else only all ones means NaN
};

Format FormatOf(DType type) {
  switch (type) {
    case DType::kF16: return {5, 10, 15, false, true};
    case DType::kBF16: return {8, 7, 127, false, true};
    case DType::kF8E5M2: return {5, 2, 15, false, true};
    case DType::kF8E4M3: return {4, 3, 7, false, false};
    case DType::kF8E4M3FNUZ: return {4, 3, 8, true, false};
    default: return {5, 2, 16, true, false};  // kF8E5M2FNUZ
  }
}

}  // namespace

float Widen(DType type, uint32_t bits) {
  const Format f = FormatOf(type);
  const int sign_bit = f.exponent + f.mantissa;
  const uint32_t sign = bits >> sign_bit & 1, exponent = bits >> f.mantissa & ((1u << f.exponent) - 1);
  const uint32_t mantissa = bits & ((1u << f.mantissa) - 1), top = (1u << f.exponent) - 1;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  if (f.fnuz && sign != 0 && exponent == 0 && mantissa == 0) return kNaN;
  if (f.infinity && exponent == top) {
    if (mantissa != 0) return kNaN;
    return sign ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  if (!f.infinity && !f.fnuz && exponent == top && mantissa == (1u << f.mantissa) - 1) return kNaN;
  const int scale = (exponent == 0 ? 1 : int(exponent)) - f.bias - f.mantissa;
  const uint32_t significand = exponent == 0 ? mantissa : mantissa | 1u << f.mantissa;
  const float value = std::ldexp(float(significand), scale);
  return sign ? -value : value;
}

uint16_t Narrow(DType type, float value) {
  if (type == DType::kBF16) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (value != value) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and more
  if (magnitude < 0x38800000) {
    // A subnormal is a multiple of 2^-24: adding 0.5 leaves that many in the low bits, rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

const float* ValuesOf(DType type) {
  const auto table = [](DType t) {
    std::vector<float> values(size_t{1} << ir::Bits(t));
    for (uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = Widen(t, bits);
    return values;
  };
  static const std::vector<float> f16 = table(DType::kF16), bf16 = table(DType::kBF16), e4m3 = table(DType::kF8E4M3), e5m2 = table(DType::kF8E5M2),
                                  e4m3fnuz = table(DType::kF8E4M3FNUZ), e5m2fnuz = table(DType::kF8E5M2FNUZ);
  switch (type) {
    case DType::kF16: return f16.data();
    case DType::kBF16: return bf16.data();
    case DType::kF8E4M3: return e4m3.data();
    case DType::kF8E5M2: return e5m2.data();
    case DType::kF8E4M3FNUZ: return e4m3fnuz.data();
    case DType::kF8E5M2FNUZ: return e5m2fnuz.data();
    default: return nullptr;
  }
}

}  // namespace kiln::emulator
