// SPDX-License-Identifier: Apache-2.0
//
// The plain conversions run on the host: 8-bit floats over all their codes and against a search for the nearest value.
#include "compiler/llvm/device/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "compiler/llvm/test_host.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;

HostFunction Function(DType from, DType to) {
  static const NativeConvert plain;
  const DType inputs[] = {from};
  return HostFunction(inputs, [&](auto& b, auto args) { return BuildConvert(b, plain, args[0], from, to); });
}

// OCP's "8-bit Floating Point Specification" (OFP8) and, for FNUZ, Noune et al., "8-bit Numerical Formats for Deep
// Neural Networks".
double ValueOf(DType type, uint8_t code) {
  const bool e4m3 = type == DType::kF8E4M3 || type == DType::kF8E4M3FNUZ;
  const bool fnuz = type == DType::kF8E4M3FNUZ || type == DType::kF8E5M2FNUZ;
  const int m = e4m3 ? 3 : 2, bias = (e4m3 ? 7 : 15) + fnuz;
  const int exponent = (code & 0x7f) >> m, mantissa = code & ((1 << m) - 1);
  if (fnuz && code == 0x80) return NAN;
  if (!fnuz && e4m3 && (code & 0x7f) == 0x7f) return NAN;
  if (!fnuz && !e4m3 && exponent == 31) return mantissa ? NAN : code & 0x80 ? -INFINITY : INFINITY;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - m) : std::ldexp((1 << m) + mantissa, exponent - bias - m);
  return code & 0x80 ? -magnitude : magnitude;
}

// The code nearest to x, ties to the even one, saturating.
uint8_t Nearest(DType type, double x) {
  const bool fnuz = type == DType::kF8E4M3FNUZ || type == DType::kF8E5M2FNUZ;
  if (std::isnan(x)) return fnuz ? 0x80 : 0x7f;
  const double magnitude = std::min(std::fabs(x), 1e6);  // beyond every largest value; distances stay exact
  int best = 0;
  for (int code = 1; code < 128; ++code) {
    const double value = ValueOf(type, uint8_t(code));
    if (!std::isfinite(value)) continue;
    const double distance = std::fabs(value - magnitude), least = std::fabs(ValueOf(type, uint8_t(best)) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return uint8_t(std::signbit(x) && !(fnuz && best == 0) ? best | 0x80 : best);
}

class Fp8 : public ::testing::TestWithParam<DType> {
 protected:
  std::vector<uint8_t> Codes() {
    std::vector<uint8_t> codes(256);
    for (int i = 0; i < 256; ++i) codes[size_t(i)] = uint8_t(i);
    return codes;
  }

  // Every value, every middle between neighbours, what lies just beside them, what is too large, and random numbers.
  std::vector<double> Interesting() {
    std::vector<double> x = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e30, 1e-30, -1e-30, 1e300, -1e-300};
    for (int code = 0; code < 256; ++code) {
      const double value = ValueOf(GetParam(), uint8_t(code)), next = ValueOf(GetParam(), uint8_t(code + 1));
      for (double base : {value, (value + next) / 2, value * 1.25, value * 1.75}) {
        for (double step : {0.0, 1e-7, -1e-7, 1e-15, -1e-15}) x.push_back(base * (1 + step));
      }
    }
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (int i = 0; i < 20000; ++i) x.push_back(normal(random) * std::ldexp(1.0, int(random() % 40) - 22));
    return x;
  }

  template <typename T>
  void ExpectNearest(DType from, const std::vector<T>& x, const std::vector<double>& values) {
    const auto got = Function(from, GetParam()).operator()<uint8_t>(x);
    int failures = 0;
    for (size_t i = 0; i < x.size() && failures < 5; ++i) {
      const uint8_t want = Nearest(GetParam(), values[i]);
      failures += got[i] != want;
      EXPECT_EQ(int(got[i]), int(want)) << std::hexfloat << values[i] << " from " << ir::Name(from);
    }
  }
};

TEST_P(Fp8, WidensEveryCode) {
  const auto wide = Function(GetParam(), DType::kF32).operator()<float>(Codes());
  const auto wider = Function(GetParam(), DType::kF64).operator()<double>(Codes());
  for (int code = 0; code < 256; ++code) {
    const double want = ValueOf(GetParam(), uint8_t(code));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(wide[size_t(code)]) && std::isnan(wider[size_t(code)])) << code;
      continue;
    }
    EXPECT_EQ(wide[size_t(code)], want) << code;
    EXPECT_EQ(wider[size_t(code)], want) << code;
    EXPECT_EQ(std::signbit(wide[size_t(code)]), std::signbit(want)) << code;
  }
}

TEST_P(Fp8, NarrowsToTheNearest) {
  const std::vector<double> values = Interesting();
  ExpectNearest(DType::kF64, values, values);
  const std::vector<float> narrow(values.begin(), values.end());
  ExpectNearest(DType::kF32, narrow, {narrow.begin(), narrow.end()});
}

TEST_P(Fp8, NarrowsEveryHalf) {
  std::vector<uint16_t> bits(65536);
  std::vector<double> bf16, f16;
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = uint16_t(i);
    bf16.push_back(std::bit_cast<float>(uint32_t(i) << 16));
    const int exponent = (i >> 10) & 31, mantissa = i & 1023;
    const double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                         : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                        : std::ldexp(mantissa, -24);
    f16.push_back(i & 0x8000 ? -value : value);
  }
  ExpectNearest(DType::kBF16, bits, bf16);
  ExpectNearest(DType::kF16, bits, f16);
}

TEST_P(Fp8, NarrowsIntegers) {
  std::vector<int32_t> x = {INT32_MIN, INT32_MAX, 0, 1, -1, 100000, -100000};
  for (int i = -2000; i < 2000; ++i) x.push_back(i * 31);
  ExpectNearest(DType::kI32, x, {x.begin(), x.end()});
  std::vector<int64_t> wide(x.begin(), x.end());
  wide.push_back(INT64_MIN);
  wide.push_back(INT64_MAX);
  ExpectNearest(DType::kI64, wide, {wide.begin(), wide.end()});
}

TEST_P(Fp8, RoundTripsThroughOthers) {
  for (DType other : {DType::kF16, DType::kBF16, DType::kTF32}) {
    const auto there = Function(GetParam(), other);
    const auto back = Function(other, GetParam());
    std::vector<uint8_t> codes;
    if (other == DType::kTF32) {
      codes = back.operator()<uint8_t>(there.operator()<float>(Codes()));
    } else {
      codes = back.operator()<uint8_t>(there.operator()<uint16_t>(Codes()));
    }
    for (int code = 0; code < 256; ++code) {
      const double value = ValueOf(GetParam(), uint8_t(code));
      if (std::isfinite(value)) {
        EXPECT_EQ(codes[size_t(code)], code) << ir::Name(other);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Fp8, ::testing::Values(DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ),
                         [](const auto& info) { return std::string(ir::Name(info.param)); });

TEST(ToInteger, TruncatesAndSaturates) {
  const std::vector<float> x = {1.9f, -1.9f, 300, -300, 1e20f, -1e20f, INFINITY, NAN};
  EXPECT_EQ(Function(DType::kF32, DType::kI8).operator()<int8_t>(x), (std::vector<int8_t>{1, -1, 127, -128, 127, -128, 127, 0}));
  EXPECT_EQ(Function(DType::kF32, DType::kU8).operator()<uint8_t>(x), (std::vector<uint8_t>{1, 0, 255, 0, 255, 0, 255, 0}));
  EXPECT_EQ(Function(DType::kF32, DType::kI64).operator()<int64_t>(x), (std::vector<int64_t>{1, -1, 300, -300, INT64_MAX, INT64_MIN, INT64_MAX, 0}));
  EXPECT_EQ(Function(DType::kF32, DType::kI4).operator()<uint8_t>(x), (std::vector<uint8_t>{1, 15, 7, 8, 7, 8, 7, 0}));
  const std::vector<uint8_t> fp8 = {0x38, 0xb8, 0x7e, 0x7f};  // 1, -1, 448, NaN
  EXPECT_EQ(Function(DType::kF8E4M3, DType::kI16).operator()<int16_t>(fp8), (std::vector<int16_t>{1, -1, 448, 0}));
}

TEST(ToInteger, KeepsLowBits) {
  const std::vector<int32_t> x = {-1, 0x1234, 200, -129};
  EXPECT_EQ(Function(DType::kI32, DType::kI8).operator()<int8_t>(x), (std::vector<int8_t>{-1, 0x34, -56, 127}));
  EXPECT_EQ(Function(DType::kI32, DType::kI64).operator()<int64_t>(x), (std::vector<int64_t>{-1, 0x1234, 200, -129}));
  EXPECT_EQ(Function(DType::kU32, DType::kI64).operator()<int64_t>(x), (std::vector<int64_t>{0xffffffff, 0x1234, 200, 0xffffff7f}));
}

TEST(Bool, IsNotZero) {
  EXPECT_EQ(Function(DType::kF32, DType::kBool).operator()<uint8_t>(std::vector<float>{0, -0.0f, 1e-40f, NAN, -3}),
            (std::vector<uint8_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(Function(DType::kI32, DType::kBool).operator()<uint8_t>(std::vector<int32_t>{0, 256, -1}), (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(Function(DType::kF8E4M3, DType::kBool).operator()<uint8_t>(std::vector<uint8_t>{0, 0x80, 1, 0x7f}), (std::vector<uint8_t>{0, 0, 1, 1}));
  EXPECT_EQ(Function(DType::kBool, DType::kF32).operator()<float>(std::vector<uint8_t>{0, 1}), (std::vector<float>{0, 1}));
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ}) {
    const auto one = Function(DType::kBool, type).operator()<uint8_t>(std::vector<uint8_t>{0, 1});
    EXPECT_EQ(ValueOf(type, one[0]), 0);
    EXPECT_EQ(ValueOf(type, one[1]), 1);
  }
}

uint32_t Tf32Bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), low = bits & 0x1fff, kept = bits & ~0x1fffu;
  const bool up = low > 0x1000 || (low == 0x1000 && (kept & 0x2000));
  return kept + (up ? 0x2000 : 0);
}

TEST(Tf32, RoundsToNearestEven) {
  std::mt19937 random(9);
  std::vector<float> x = {0, -0.0f, INFINITY, -INFINITY, std::numeric_limits<float>::max(), 1 + 0x1p-11f, 1 + 3 * 0x1p-11f};
  for (int i = 0; i < 100000; ++i) {
    const float any = std::bit_cast<float>(uint32_t(random()));
    if (!std::isnan(any)) x.push_back(any);
  }
  const auto got = Function(DType::kF32, DType::kTF32).operator()<float>(x);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), Tf32Bits(x[i])) << std::hexfloat << x[i];
  EXPECT_TRUE(std::isnan(Function(DType::kF32, DType::kTF32).operator()<float>(std::vector<float>{NAN})[0]));
}

// bf16 of an integer or a double: one rounding, where f32 between would round twice.
TEST(Bf16, RoundsOnce) {
  const auto bits_of = [](double x) {  // of a finite x, exactly
    const int exponent = std::ilogb(x);
    const double unit = std::ldexp(1.0, exponent - 7), rounded = std::nearbyint(x / unit) * unit;
    return uint16_t(std::bit_cast<uint32_t>(float(rounded)) >> 16);
  };
  std::vector<int64_t> integers = {0x1010000000001, 0x1010000000000, 0x1010000000000 - 1, 0x1030000000001, 65793, (1 << 24) + (1 << 16) + 1};
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    // A middle between two bf16 and one more or less: what double rounding gets wrong.
    const int shift = int(random() % 44);
    const int64_t middle = (int64_t(256 + random() % 256) * 2 + 1) << shift;
    integers.push_back(middle + int64_t(random() % 3) - 1);
  }
  const auto got = Function(DType::kI64, DType::kBF16).operator()<uint16_t>(integers);
  std::vector<double> doubles;
  for (size_t i = 0; i < integers.size(); ++i) {
    doubles.push_back(double(integers[i]));
    ASSERT_EQ(got[i], bits_of(double(integers[i]))) << integers[i];
  }
  const auto of_doubles = Function(DType::kF64, DType::kBF16).operator()<uint16_t>(doubles);
  for (size_t i = 0; i < doubles.size(); ++i) ASSERT_EQ(of_doubles[i], bits_of(doubles[i])) << integers[i];
  // Beyond 53 bits: 2^62 + 2^54 is the middle of two bf16, one more is above it.
  const int64_t middle = (int64_t{1} << 62) + (int64_t{1} << 54);
  EXPECT_EQ(Function(DType::kI64, DType::kBF16).operator()<uint16_t>(std::vector<int64_t>{middle, middle + 1, middle - 1, -middle - 1}),
            (std::vector<uint16_t>{0x5e80, 0x5e81, 0x5e80, 0xde81}));
}

}  // namespace
}  // namespace kiln::llvm_ir
