// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "compiler/emulator/runtime/atomic.h"
#include "compiler/emulator/runtime/tensor_copy.h"

namespace kiln::emulator {
namespace {

// What a type is to the operations of cp.reduce.async.bulk.tensor.
ir::DType NumberType(TensorType type) {
  using enum ir::DType;
  static constexpr ir::DType kTypes[] = {kU8, kU16, kU32, kI32, kU64, kI64, kF16, kF32, kF64, kBF16, kF32, kF32, kF32};
  return kTypes[size_t(type)];
}

// What a load makes of a value in passing.
uint32_t Converted(TensorType type, uint32_t bits) {
  if (type == TensorType::kTF32Flushed && (bits & 0x7f800000) == 0) return bits & 0x80000000;
  if ((bits & 0x7f800000) == 0x7f800000) return bits;
  return (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
}

void FillRow(const TensorMap& map, std::byte* to, uint32_t bytes) {
  if (map.fill == TensorFill::kZero) {
    std::memset(to, 0, bytes);
    return;
  }
  const uint32_t element = BytesOf(map.type);
  for (uint32_t i = 0; i < bytes; ++i) to[i] = std::byte(i % element == element - 1 ? 0x7f : 0xff);
}

void CopyRow(const TensorMap& map, const BoxRow& row, std::byte* to) {
  const uint32_t element = BytesOf(map.type);
  FillRow(map, to, map.box[0] * element);
  if (row.first == row.end) return;
  std::byte* inside = to + row.first * element;
  std::memcpy(inside, reinterpret_cast<const std::byte*>(row.address) + row.first * element, (row.end - row.first) * element);
  if (map.type != TensorType::kTF32 && map.type != TensorType::kTF32Flushed) return;
  for (uint32_t i = row.first; i < row.end; ++i) {
    uint32_t bits;
    std::memcpy(&bits, to + i * 4, 4);
    bits = Converted(map.type, bits);
    std::memcpy(to + i * 4, &bits, 4);
  }
}

constexpr uint32_t kPiece = 16;

}  // namespace

void ForEachRow(const TensorMap& map, const Coordinates& at, const std::function<void(const BoxRow&)>& visit) {
  const uint32_t element = BytesOf(map.type), row_bytes = map.box[0] * element;
  uint32_t rows = 1;
  for (uint32_t d = 1; d < map.rank; ++d) rows *= map.Extent(d);
  const int64_t extent = int64_t(map.dims[0]) + 1;
  const auto first = uint32_t(std::clamp<int64_t>(-int64_t(at[0]), 0, map.box[0]));
  const auto end = uint32_t(std::clamp<int64_t>(extent - at[0], first, map.box[0]));
  for (uint32_t r = 0; r < rows; ++r) {
    BoxRow row{.address = map.address + uint64_t(int64_t(at[0]) * element), .first = first, .end = end, .linear = r * row_bytes};
    uint32_t rest = r;
    for (uint32_t d = 1; d < map.rank; ++d) {
      const int64_t index = int64_t(at[d]) + int64_t(rest % map.Extent(d)) * map.element_strides[d];
      rest /= map.Extent(d);
      row.address += uint64_t(index) * map.strides[d - 1];
      if (index < 0 || index > int64_t(map.dims[d])) row.end = row.first;
    }
    visit(row);
  }
}

uint32_t PlaceInBox(const TensorMap& map, uint32_t start, uint32_t linear) {
  static constexpr uint32_t kMasks[] = {0, 1, 3, 7};
  const uint32_t address = start + linear / map.RowBytes() * map.Pitch() + linear % map.RowBytes();
  return address ^ ((address >> 7 & kMasks[size_t(map.swizzle)]) << 4);
}

void LoadBox(const TensorMap& map, const Coordinates& at, std::byte* shared, uint32_t start) {
  std::vector<std::byte> bytes(map.box[0] * BytesOf(map.type));
  ForEachRow(map, at, [&](const BoxRow& row) {
    CopyRow(map, row, bytes.data());
    for (uint32_t i = 0; i < bytes.size(); i += kPiece) {
      std::memcpy(shared + PlaceInBox(map, start, row.linear + i), bytes.data() + i, kPiece);
    }
  });
}

std::vector<std::byte> GatherBox(const TensorMap& map, const std::byte* shared, uint32_t start) {
  std::vector<std::byte> bytes(map.BoxBytes());
  for (uint32_t i = 0; i < bytes.size(); i += kPiece) {
    std::memcpy(bytes.data() + i, shared + PlaceInBox(map, start, i), kPiece);
  }
  return bytes;
}

void StoreBox(const TensorMap& map, const Coordinates& at, const std::byte* rows, TensorOp op) {
  const uint32_t element = BytesOf(map.type);
  ForEachRow(map, at, [&](const BoxRow& row) {
    if (row.first == row.end) return;  // outside: dropped
    auto* to = reinterpret_cast<std::byte*>(row.address);
    const std::byte* from = rows + row.linear;
    if (op == TensorOp::kStore) {
      std::memcpy(to + row.first * element, from + row.first * element, (row.end - row.first) * element);
      return;
    }
    for (uint32_t i = row.first; i < row.end; ++i) Atomically(uint32_t(op), NumberType(map.type), to + i * element, from + i * element);
  });
}

bool DependsOnOrder(TensorOp op, TensorType type) { return op != TensorOp::kStore && DependsOnOrder(uint32_t(op), NumberType(type)); }

const char* CheckOp(TensorOp op, TensorType type) {
  using enum TensorType;
  const bool unsigned32 = type == kU32, integer = unsigned32 || type == kI32 || type == kU64 || type == kI64;
  const bool half = type == kF16 || type == kBF16, bits = BytesOf(type) >= 4;
  switch (op) {
    case TensorOp::kStore: return "";
    case TensorOp::kAdd: return (integer && type != kI64) || half || type == kF32 ? "" : "adds u32, s32, u64, f32, f16 and bf16";
    case TensorOp::kMax:
    case TensorOp::kMin: return integer || half ? "" : "takes minima and maxima of u32, s32, u64, s64, f16 and bf16";
    case TensorOp::kInc:
    case TensorOp::kDec: return unsigned32 ? "" : "counts in u32";
    case TensorOp::kAnd:
    case TensorOp::kOr:
    case TensorOp::kXor: return bits ? "" : "combines bits of 32 and 64";
    case TensorOp::kCompareExchange:
    case TensorOp::kLoad: break;
  }
  return "knows no such operation";
}

}  // namespace kiln::emulator
