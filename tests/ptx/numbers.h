// SPDX-License-Identifier: Apache-2.0
//
// Numbers of PTX's types as the host's. PTX ISA, "Fundamental Types", "Alternate Floating-Point Data Formats".
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tests/ptx/text.h"

namespace kiln::ptx {

// Bits of exponent and of fraction.
struct Format {
  int exponent, fraction;
  bool infinity = true;  // else the largest exponent is for numbers as well, and all ones are NaN
};
inline constexpr Format kHalf{5, 10}, kBfloat{8, 7}, kE4M3{4, 3, false}, kE5M2{5, 2}, kTf32{8, 10}, kSingle{8, 23};
Format FormatOf(Type type);

double Widen(Format format, uint32_t bits);
// To the nearest, ties to even or away from zero, or towards zero; `saturate`: the largest number in place of infinity. Exact: rounded once.
enum class Rounding : uint8_t { kNearest, kNearestAway, kZero };
uint32_t Narrow(Format format, long double value, bool saturate = false, Rounding rounding = Rounding::kNearest);

// 16-bit floats compute as double; a product or sum of two is exact there.
template <const Format& kFormat>
struct Small {
  double value;
};
using Half = Small<kHalf>;
using Bfloat = Small<kBfloat>;
template <typename T>
inline constexpr bool kIsSmall = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

template <typename T>
T FromBits(uint64_t bits) {
  if constexpr (std::is_same_v<T, Half>) {
    return {Widen(kHalf, uint32_t(bits & 0xffff))};
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return {Widen(kBfloat, uint32_t(bits & 0xffff))};
  } else if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(uint32_t(bits));
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<double>(bits);
  } else {
    return T(bits);
  }
}

// A NaN is the canonical one, as the hardware's arithmetic gives it.
template <typename T>
uint64_t ToBits(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return Narrow(kHalf, value.value);
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return Narrow(kBfloat, value.value);
  } else if constexpr (std::is_same_v<T, float>) {
    return value != value ? 0x7fffffff : std::bit_cast<uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return value != value ? 0xfff8000000000000 : std::bit_cast<uint64_t>(value);
  } else if constexpr (std::is_signed_v<T>) {
    return uint64_t(int64_t(value));
  } else {
    return value;
  }
}

inline int64_t SignExtended(uint64_t value, uint32_t bits) { return bits == 64 ? int64_t(value) : int64_t(value << (64 - bits)) >> (64 - bits); }

}  // namespace kiln::ptx
