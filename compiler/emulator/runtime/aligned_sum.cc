// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/aligned_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kiln::emulator {
namespace {

constexpr uint32_t kTile = 8;       // columns at once
constexpr int kLeast = -400;        // of exponents: below all that occur

int Exponent(double x) { return int(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1023; }
double PowerOf2(int exponent) { return std::bit_cast<double>(uint64_t(1023 + exponent) << 52); }

std::vector<int> Exponents(const std::vector<float>& values) {
  std::vector<int> exponents(values.size());
  std::ranges::transform(values, exponents.begin(), [](float x) { return std::max(Exponent(x), kLeast); });
  return exponents;
}

struct Operands {
  const float *a, *b;
  const int *ea, *eb;
  float* c;
};

// kTile neighbouring columns of one row.
__attribute__((target_clones("avx2,fma", "default"))) void AddTile(const Adder& adder, const Operands& o, uint32_t columns, uint32_t k) {
  int most[kTile];
  for (uint32_t j = 0; j < kTile; ++j) most[j] = std::max(Exponent(double(o.c[j])), kLeast);
  for (uint32_t p = 0; p < k; ++p) {
    for (uint32_t j = 0; j < kTile; ++j) most[j] = std::max(most[j], o.ea[p] + o.eb[p * columns + j]);
  }
  double scale[kTile], sum[kTile];
  for (uint32_t j = 0; j < kTile; ++j) scale[j] = PowerOf2(adder.aligned_bits - most[j]);
  for (uint32_t j = 0; j < kTile; ++j) sum[j] = std::trunc(o.c[j] * scale[j]);
  for (uint32_t p = 0; p < k; ++p) {
    const double x = o.a[p];
    for (uint32_t j = 0; j < kTile; ++j) sum[j] += std::trunc(x * o.b[p * columns + j] * scale[j]);
  }
  const uint64_t mask = ~((uint64_t{1} << (52 - adder.kept_bits)) - 1);
  for (uint32_t j = 0; j < kTile; ++j) o.c[j] = float(std::bit_cast<double>(std::bit_cast<uint64_t>(sum[j] * PowerOf2(most[j] - adder.aligned_bits)) & mask));
}

// With infinities and NaN there is nothing to align.
void AddTilePlain(const Operands& o, uint32_t columns, uint32_t k) {
  for (uint32_t j = 0; j < kTile; ++j) {
    double sum = o.c[j];
    for (uint32_t p = 0; p < k; ++p) sum += double(o.a[p]) * o.b[p * columns + j];
    o.c[j] = float(sum);
  }
}

bool AllFinite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

}  // namespace

void AddAligned(const Adder& adder, const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c, uint32_t columns, uint32_t k) {
  const std::vector<int> ea = Exponents(a), eb = Exponents(b);
  const bool finite = AllFinite(a) && AllFinite(b) && AllFinite(c);
  for (size_t row = 0; row < c.size() / columns; ++row) {
    for (uint32_t column = 0; column < columns; column += kTile) {
      const Operands o{a.data() + row * k, b.data() + column, ea.data() + row * k, eb.data() + column, c.data() + row * columns + column};
      finite ? AddTile(adder, o, columns, k) : AddTilePlain(o, columns, k);
    }
  }
}

}  // namespace kiln::emulator
