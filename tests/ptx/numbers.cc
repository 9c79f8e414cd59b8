// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/numbers.h"

#include <algorithm>

namespace kiln::ptx {

Format FormatOf(Type type) {
  switch (type.kind) {
    case 'B': return kBfloat;
    case '4': return kE4M3;
    case '5': return kE5M2;
    case 't': return kTf32;
    default: return type.bits == 16 ? kHalf : kSingle;
  }
}

double Widen(Format format, uint32_t bits) {
  const int bias = (1 << (format.exponent - 1)) - 1;
  const uint32_t top = (1u << format.exponent) - 1, ones = (1u << format.fraction) - 1;
  const uint32_t exponent = bits >> format.fraction & top, fraction = bits & ones;
  const bool negative = (bits >> (format.exponent + format.fraction) & 1) != 0;
  double value = 0;
  if (exponent == top && (format.infinity ? fraction != 0 : fraction == ones)) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == top && format.infinity) {
    value = std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(double(fraction), 1 - bias - format.fraction);
  } else {
    value = std::ldexp(double(fraction | 1u << format.fraction), int(exponent) - bias - format.fraction);
  }
  return negative ? -value : value;
}

uint32_t Narrow(Format format, long double value, bool saturate, Rounding rounding) {
  const int bias = (1 << (format.exponent - 1)) - 1;
  const uint32_t top = (1u << format.exponent) - 1, ones = (1u << format.fraction) - 1;
  const uint32_t sign = std::signbit(value) ? 1u << (format.exponent + format.fraction) : 0;
  if (std::isnan(value)) return format.exponent == 8 && format.fraction == 23 ? 0x7fffffff : top << format.fraction | ones;
  const uint32_t largest = format.infinity ? (top << format.fraction) - 1 : (top << format.fraction | ones) - 1;
  const uint32_t beyond = saturate ? largest : format.infinity ? top << format.fraction : largest + 1;
  const long double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | beyond;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const long double scaled = std::ldexp(magnitude, format.fraction - exponent);  // a number of units in the last place
  long double units = std::floor(scaled);
  const long double rest = scaled - units;
  const bool tie_up = rounding == Rounding::kNearestAway || std::fmod(units, 2.0L) != 0;
  if (rounding != Rounding::kZero && (rest > 0.5L || (rest == 0.5L && tie_up))) units += 1;
  // Units carry into the exponent's field by themselves.
  const auto count = uint64_t(units);
  const uint64_t bits = count < (uint64_t{1} << format.fraction) ? count : (uint64_t(exponent + bias - 1) << format.fraction) + count;
  if (bits > largest) return sign | (rounding == Rounding::kZero ? largest : beyond);
  return sign | uint32_t(bits);
}

}  // namespace kiln::ptx
