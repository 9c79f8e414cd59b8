// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/matrix/aligned_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace kiln::emulator {
namespace {

// One sum, by the rule at the head of aligned_sum.h and the library's functions.
float Sum(const Adder& adder, float c, const std::vector<std::pair<float, float>>& factors) {
  const auto exponent = [](float x) { return x == 0 ? -400 : std::ilogb(x); };
  int most = exponent(c);
  for (const auto& [x, y] : factors) most = std::max(most, exponent(x) + exponent(y));
  const auto cut = [&](double x) { return std::trunc(std::ldexp(x, adder.aligned_bits - most)); };
  double sum = cut(c);
  for (const auto& [x, y] : factors) sum += cut(double(x) * y);
  if (sum == 0) return 0;
  const int kept = std::ilogb(sum) - adder.kept_bits;
  return float(std::ldexp(std::ldexp(std::trunc(std::ldexp(sum, -kept)), kept), most - adder.aligned_bits));
}

struct Shape {
  uint32_t rows, columns, k;
};

// Operands of so many bits, implicit one included, with exponents up to `range` away from 0, some of them zero.
void ExpectByTheRule(const Adder& adder, const Shape& shape, int bits, int range, uint32_t seed) {
  std::mt19937 random(seed);
  const auto number = [&](int most_bits, int exponents) {
    if (random() % 8 == 0) return 0.0f;
    const int mantissa = int(random() % (1u << (most_bits - 1))) + (1 << (most_bits - 1));
    const float x = std::ldexp(float(mantissa), int(random() % uint32_t(2 * exponents + 1)) - exponents - most_bits + 1);
    return random() % 2 == 0 ? x : -x;
  };
  const auto fill = [&](uint32_t count, int most_bits, int exponents) {
    std::vector<float> values(count);
    std::ranges::generate(values, [&] { return number(most_bits, exponents); });
    return values;
  };
  const auto [rows, columns, k] = shape;
  const std::vector<float> a = fill(rows * k, bits, range), b = fill(k * columns, bits, range),
                           before = fill(rows * columns, 24, std::min(2 * range, 120));
  std::vector<float> c = before;
  AddAligned(adder, a, b, c, columns, k);
  for (uint32_t i = 0; i < rows * columns; ++i) {
    std::vector<std::pair<float, float>> factors;
    for (uint32_t p = 0; p < k; ++p) factors.emplace_back(a[i / columns * k + p], b[p * columns + i % columns]);
    ASSERT_EQ(c[i], Sum(adder, before[i], factors)) << "row " << i / columns << ", column " << i % columns << ", seed " << seed;
  }
}

TEST(AlignedSum, FollowsTheRule) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const uint32_t columns : {8u, 16u, 40u}) {
      ExpectByTheRule(kFloatAdder, {4, columns, 16}, 11, 3, seed);   // f16, alike
      ExpectByTheRule(kFloatAdder, {4, columns, 16}, 11, 15, seed);  // and over its range
      ExpectByTheRule(kFloatAdder, {4, columns, 16}, 8, 30, seed);   // bf16
      ExpectByTheRule(kFloatAdder, {4, columns, 16}, 8, 60, seed);   // whose products leave the range of floats' exponents
      ExpectByTheRule(kFloatAdder, {4, columns, 8}, 11, 60, seed);   // tf32
      ExpectByTheRule(kFloat8Adder, {4, columns, 32}, 4, 8, seed);
    }
  }
}

// As large as sixteen terms can be together.
TEST(AlignedSum, LargestTerms) {
  const float largest = 2 - 0x1p-10f;
  std::vector<float> c(16, 1.0f);
  AddAligned(kFloatAdder, std::vector<float>(16, largest), std::vector<float>(256, largest), c, 16, 16);
  EXPECT_EQ(c[0], Sum(kFloatAdder, 1.0f, std::vector<std::pair<float, float>>(16, {largest, largest})));
}

TEST(AlignedSum, OfInfinitiesAndNaN) {
  std::vector<float> a(16, 1.0f), b(16 * 8, 1.0f), c(8, 0.0f);
  b[1] = std::numeric_limits<float>::infinity();
  b[2] = std::numeric_limits<float>::quiet_NaN();
  AddAligned(kFloatAdder, a, b, c, 8, 16);
  EXPECT_EQ(c[0], 16.0f);
  EXPECT_TRUE(std::isinf(c[1]) && std::isnan(c[2]));
}

}  // namespace
}  // namespace kiln::emulator
