// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/matrix/aligned_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kiln::emulator {
namespace {

constexpr int kLeast = -400;  // of exponents: below all that occur

int Exponent(double x) { return int(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1023; }
double PowerOf2(int exponent) { return std::bit_cast<double>(uint64_t(1023 + exponent) << 52); }
float FloatPowerOf2(int exponent) { return std::bit_cast<float>(uint32_t(127 + exponent) << 23); }

// With the range of those that are not of zeros.
struct Exponents {
  std::vector<int16_t> all;
  int least = std::numeric_limits<int16_t>::max(), most = std::numeric_limits<int16_t>::min();

  explicit Exponents(const std::vector<float>& values) : all(values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      const int exponent = std::max(Exponent(values[i]), kLeast);
      all[i] = int16_t(exponent);
      most = std::max(most, exponent);
      if (exponent != kLeast) least = std::min(least, exponent);
    }
  }
};

struct Operands {
  const float *a, *b;
  const int16_t *ea, *eb;
  float* c;
};

// N numbers that the processor treats at once.
template <typename T, uint32_t N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T, uint32_t N>
using Vector = typename VectorOf<T, N>::type;

template <typename T, typename U>
inline __attribute__((always_inline)) void Load(T& to, const U* from) {
  std::memcpy(&to, from, sizeof to);
}

// The largest exponents of N neighbouring columns of one row.
template <uint32_t N>
inline __attribute__((always_inline)) void FindMost(const Operands& o, uint32_t columns, uint32_t k, int16_t* most) {
  for (uint32_t j = 0; j < N; ++j) most[j] = int16_t(std::max(Exponent(double(o.c[j])), kLeast));
  Vector<int16_t, N> largest, row;
  Load(largest, most);
  for (uint32_t p = 0; p < k; ++p) {
    Load(row, o.eb + size_t{p} * columns);
    row += o.ea[p];
    largest = row > largest ? row : largest;
  }
  std::memcpy(most, &largest, sizeof largest);
}

template <uint32_t N>
inline __attribute__((always_inline)) void Round(const Adder& adder, const double* sum, const int16_t* most, float* c) {
  const uint64_t mask = ~((uint64_t{1} << (52 - adder.kept_bits)) - 1);
  for (uint32_t j = 0; j < N; ++j)
    c[j] = float(std::bit_cast<double>(std::bit_cast<uint64_t>(sum[j] * PowerOf2(most[j] - adder.aligned_bits)) & mask));
}

// Where floats hold products exactly: they have 22 bits at most, and their exponents are in range. The cut terms are integers of less
// than 28 bits, of which eight fit a sum of 32.
constexpr int kLeastProduct = -100, kMostProduct = 120;
constexpr uint32_t kPart = 8;

template <uint32_t N>
__attribute__((target_clones("avx512f", "avx2", "default"))) void AddExact(const Adder& adder, const Operands& o, uint32_t columns, uint32_t k) {
  int16_t most[N];
  FindMost<N>(o, columns, k, most);
  // Below the limit there are zeros alone.
  Vector<float, N> scale, row;
  for (uint32_t j = 0; j < N; ++j) scale[j] = FloatPowerOf2(std::min(adder.aligned_bits - most[j], adder.aligned_bits - kLeastProduct));
  double sum[N];
  for (uint32_t j = 0; j < N; ++j) sum[j] = std::trunc(o.c[j] * PowerOf2(adder.aligned_bits - most[j]));
  for (uint32_t first = 0; first < k; first += kPart) {
    Vector<int32_t, N> part{};
    for (uint32_t p = first; p < std::min(first + kPart, k); ++p) {
      Load(row, o.b + size_t{p} * columns);
      part += __builtin_convertvector(row * o.a[p] * scale, Vector<int32_t, N>);
    }
    for (uint32_t j = 0; j < N; ++j) sum[j] += part[j];
  }
  Round<N>(adder, sum, most, o.c);
}

template <uint32_t N>
__attribute__((target_clones("avx512f", "avx2", "default"))) void AddWide(const Adder& adder, const Operands& o, uint32_t columns, uint32_t k) {
  int16_t most[N];
  FindMost<N>(o, columns, k, most);
  double scale[N], sum[N];
  for (uint32_t j = 0; j < N; ++j) scale[j] = PowerOf2(adder.aligned_bits - most[j]);
  for (uint32_t j = 0; j < N; ++j) sum[j] = std::trunc(o.c[j] * scale[j]);
  for (uint32_t p = 0; p < k; ++p) {
    const double x = o.a[p];
    const float* row = o.b + size_t{p} * columns;
    for (uint32_t j = 0; j < N; ++j) sum[j] += std::trunc(x * row[j] * scale[j]);
  }
  Round<N>(adder, sum, most, o.c);
}

// With infinities and NaN there is nothing to align.
template <uint32_t N>
void AddPlain(const Adder&, const Operands& o, uint32_t columns, uint32_t k) {
  for (uint32_t j = 0; j < N; ++j) {
    double sum = o.c[j];
    for (uint32_t p = 0; p < k; ++p) sum += double(o.a[p]) * o.b[p * columns + j];
    o.c[j] = float(sum);
  }
}

using Add = void (*)(const Adder&, const Operands&, uint32_t columns, uint32_t k);

// Of 16 columns and of 8.
std::pair<Add, Add> AddOf(const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& c, const Exponents& ea,
                          const Exponents& eb) {
  const auto finite = [](const std::vector<float>& values) { return std::ranges::all_of(values, [](float x) { return std::isfinite(x); }); };
  if (!finite(a) || !finite(b) || !finite(c)) return {AddPlain<16>, AddPlain<8>};
  const bool exact = ea.most + eb.most <= kMostProduct && ea.least + eb.least >= kLeastProduct;
  return exact ? std::pair<Add, Add>{AddExact<16>, AddExact<8>} : std::pair<Add, Add>{AddWide<16>, AddWide<8>};
}

}  // namespace

void AddAligned(const Adder& adder, const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c, uint32_t columns, uint32_t k) {
  const Exponents ea(a), eb(b);
  const auto [add16, add8] = AddOf(a, b, c, ea, eb);
  for (size_t row = 0; row < c.size() / columns; ++row) {
    for (uint32_t column = 0; column < columns;) {
      const bool wide = columns - column >= 16;
      const Operands o{a.data() + row * k, b.data() + column, ea.all.data() + row * k, eb.all.data() + column, c.data() + row * columns + column};
      (wide ? add16 : add8)(adder, o, columns, k);
      column += wide ? 16 : 8;
    }
  }
}

}  // namespace kiln::emulator
