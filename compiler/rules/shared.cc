// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/shared.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace kiln::compiler {
namespace {

constexpr int64_t kChunk = 16;  // bytes; the unit that moves together
constexpr int kChunkBits = 4;

ir::Swizzle SwizzleFor(int64_t row_bytes) {
  const int e = std::countr_zero(uint64_t(row_bytes));
  if (e >= 7) return {3, kChunkBits, uint8_t(e - kChunkBits)};
  if (e == 6) return {2, kChunkBits, 3};
  if (e == 5) return {1, kChunkBits, 3};
  return {};
}

// `pitch`: elements from one row to the next.
ir::Layout ByRows(std::span<const int64_t> shape, int64_t pitch, const ir::Swizzle& swizzle) {
  std::vector<int64_t> strides(shape.size(), 1);
  int64_t stride = pitch;
  for (size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = stride;
    stride *= shape[d - 1];
  }
  return ir::Layout::Strided(shape, strides, swizzle);
}

}  // namespace

ir::Layout SharedLayout(std::span<const int64_t> shape, int64_t element_bits) {
  const int64_t row_bits = shape.empty() ? element_bits : shape.back() * element_bits;
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  int64_t pitch = shape.empty() ? 1 : shape.back();
  ir::Swizzle swizzle;
  if (rows > 1 && row_bits >= kChunk * 8) {
    if (row_bits % (kChunk * 8) == 0) {
      swizzle = SwizzleFor(row_bits / 8);
    } else {
      int64_t chunks = (row_bits + kChunk * 8 - 1) / (kChunk * 8);
      chunks += chunks % 2 == 0;
      pitch = chunks * kChunk * 8 / element_bits;
    }
  }
  return ByRows(shape, pitch, swizzle);
}

ir::Layout RowMajorLayout(std::span<const int64_t> shape) { return ByRows(shape, shape.empty() ? 1 : shape.back(), {}); }

int64_t PanelBytes(int64_t row_bytes) {
  for (int64_t bytes : {128, 64, 32})
    if (row_bytes % bytes == 0) return bytes;
  return 0;
}

ir::Layout WgmmaSharedLayout(std::span<const int64_t> shape, int64_t element_bits) {
  using ir::Place;
  const size_t rank = shape.size();
  const int64_t rows = shape[rank - 2], row = shape[rank - 1], panel = PanelBytes(row * element_bits / 8);
  const int64_t width = panel * 8 / element_bits;
  std::vector<std::vector<ir::Digit>> dims(rank - 2);
  int64_t stride = rows * row;  // between matrices, a multiple of what swizzles repeat after
  for (size_t d = rank - 2; d-- > 0; stride *= shape[d])
    if (shape[d] > 1) dims[d].push_back({shape[d], Place::kAddress, stride});
  dims.push_back({{rows, Place::kAddress, width}});
  dims.push_back({{width, Place::kAddress, 1}});
  if (row > width) dims.back().push_back({row / width, Place::kAddress, rows * width});
  const uint8_t bits = panel == 128 ? 3 : panel == 64 ? 2 : 1;
  return ir::Layout(std::move(dims), {}, {bits, kChunkBits, 3});
}

int64_t BankConflicts(const ir::Layout& layout, std::span<const int64_t> shape, int64_t element_bits) {
  if (shape.size() < 2) return 1;
  std::array<int64_t, 8> hits{};
  ir::Indices index(shape.size(), 0);
  for (int64_t row = 0; row < std::min<int64_t>(8, shape[shape.size() - 2]); ++row) {
    index[shape.size() - 2] = row;
    const int64_t address = layout.swizzle().Apply(layout.AddressOf(index) * element_bits / 8);
    ++hits[address / kChunk % 8];
  }
  return std::ranges::max(hits);
}

}  // namespace kiln::compiler
