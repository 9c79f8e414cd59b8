// SPDX-License-Identifier: Apache-2.0
#include "ir/expr/numeric.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kiln::ir {
namespace {

// A binary floating-point format: explicit mantissa bits, exponent of the smallest normal value, largest finite value.
struct Format {
  int mantissa;
  int min_exponent;
  double max;
  bool saturates;
  bool negative_zero;
};

Format FormatOf(DType type) {
  switch (type) {
    case DType::kF16: return {10, -14, 65504.0, false, true};
    case DType::kBF16: return {7, -126, 0x1.fep127, false, true};
    case DType::kTF32: return {10, -126, 0x1.ffcp127, false, true};
    case DType::kF32: return {23, -126, 0x1.fffffep127, false, true};
    case DType::kF4E2M1: return {1, 0, 6.0, true, true};
    case DType::kF8E4M3: return {3, -6, 448.0, true, true};
    case DType::kF8E5M2: return {2, -14, 57344.0, true, true};
    case DType::kF8E4M3FNUZ: return {3, -7, 240.0, true, false};
    case DType::kF8E5M2FNUZ: return {2, -15, 57344.0, true, false};
    default: return {52, -1022, std::numeric_limits<double>::max(), false, true};
  }
}

}  // namespace

int64_t WrapTo(DType type, int64_t value) {
  if (type == DType::kBool) return value != 0;
  int shift = 64 - Bits(type);
  if (IsUnsigned(type)) return int64_t(uint64_t(value) << shift >> shift);
  return int64_t(uint64_t(value) << shift) >> shift;
}

double RoundTo(DType type, double value) {
  if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
  if (type == DType::kF64) return value;
  Format format = FormatOf(type);
  if (std::isinf(value)) return format.saturates ? std::copysign(format.max, value) : value;
  if (value == 0) return format.negative_zero ? value : 0.0;
  int exponent;
  std::frexp(value, &exponent);
  int quantum = std::max(exponent - 1, format.min_exponent) - format.mantissa;
  double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
  if (std::fabs(rounded) > format.max) {
    return std::copysign(format.saturates ? format.max : std::numeric_limits<double>::infinity(), value);
  }
  return rounded == 0 && !format.negative_zero ? 0.0 : rounded;
}

int64_t SaturateTo(DType type, double value) {
  if (type == DType::kBool) return value != 0;
  if (std::isnan(value)) return 0;
  double truncated = std::trunc(value);
  int bits = Bits(type);
  if (IsUnsigned(type)) {
    if (truncated <= 0) return 0;
    return truncated >= std::ldexp(1.0, bits) ? MaxOf(type) : int64_t(uint64_t(truncated));
  }
  if (truncated < -std::ldexp(1.0, bits - 1)) return MinOf(type);
  return truncated >= std::ldexp(1.0, bits - 1) ? MaxOf(type) : int64_t(truncated);
}

bool IsValueOf(DType type, double value) {
  if (value != std::trunc(value)) return false;
  if (type == DType::kBool) return value == 0 || value == 1;
  const int bits = IsUnsigned(type) ? Bits(type) : Bits(type) - 1;
  return value < std::ldexp(1.0, bits) && value >= (IsUnsigned(type) ? 0 : -std::ldexp(1.0, bits));
}

int64_t MinOf(DType type) {
  if (!IsSigned(type)) return 0;
  return -(int64_t{1} << (Bits(type) - 2)) * 2;
}

int64_t MaxOf(DType type) {
  if (type == DType::kBool) return 1;
  uint64_t all = ~uint64_t{0} >> (64 - Bits(type));
  return int64_t(IsSigned(type) ? all >> 1 : all);
}

}  // namespace kiln::ir
