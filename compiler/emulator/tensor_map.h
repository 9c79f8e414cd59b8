// SPDX-License-Identifier: Apache-2.0
//
// The tensor map of an emulated tensor copy: what cuTensorMapEncodeTiled makes for a GPU. Numbers of types, swizzles and fills are
// the driver's (CUDA Driver API, "Tensor Map Object Management"), and so is what it refuses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>

namespace kiln::emulator {

inline constexpr size_t kTensorMapBytes = 128;
inline constexpr uint32_t kMaxTensorRank = 5;

enum class TensorType : uint8_t { kU8, kU16, kU32, kI32, kU64, kI64, kF16, kF32, kF64, kBF16, kF32Flushed, kTF32, kTF32Flushed };
enum class TensorSwizzle : uint8_t { kNone, k32, k64, k128 };
enum class TensorFill : uint8_t { kZero, kNan };  // of what lies outside of the tensor

uint32_t BytesOf(TensorType type);

// Dimensions from the innermost on.
struct TensorMap {
  uint64_t magic = kMagic;
  uint64_t address = 0;
  std::array<uint32_t, kMaxTensorRank> dims{};            // elements, less one: up to 2^32
  std::array<uint16_t, kMaxTensorRank> box{};             // elements
  std::array<uint8_t, kMaxTensorRank> element_strides{};  // every how many of the box's elements are copied; the innermost's is 1
  uint8_t rank = 0;
  std::array<uint64_t, kMaxTensorRank - 1> strides{};  // bytes from one element to the next, of all but the innermost dimension
  TensorType type{};
  TensorSwizzle swizzle{};
  TensorFill fill{};
  std::array<uint8_t, 37> reserved{};

  static constexpr uint64_t kMagic = 0x70616d206e6c696b;
  // Elements that a copy moves along a dimension, and bytes in all.
  uint32_t Extent(uint32_t dim) const { return (uint32_t(box[dim]) + element_strides[dim] - 1) / element_strides[dim]; }
  uint32_t BoxBytes() const;
  // RowBytes: bytes of a row of the innermost dimension in shared memory. Pitch: bytes from one such row to the next, a swizzle's span,
  // which narrow rows fill only in part.
  uint32_t RowBytes() const;
  uint32_t Pitch() const;
  uint32_t SharedBytes() const { return BoxBytes() / RowBytes() * Pitch(); }
};
static_assert(sizeof(TensorMap) == kTensorMapBytes);

// As cuTensorMapEncodeTiled's parameters, with interleave none. Absent strides are those of a dense tensor.
struct TensorMapSpec {
  TensorType type{};
  uint32_t rank = 0;
  uint64_t address = 0;
  std::array<uint64_t, kMaxTensorRank> dims{};
  std::array<uint64_t, kMaxTensorRank - 1> strides{};
  std::array<uint32_t, kMaxTensorRank> box{};
  std::array<uint32_t, kMaxTensorRank> element_strides{1, 1, 1, 1, 1};
  TensorSwizzle swizzle{};
  TensorFill fill{};
};

// The error says which rule is broken and by what.
std::expected<TensorMap, std::string> EncodeTensorMap(const TensorMapSpec& spec);

}  // namespace kiln::emulator
