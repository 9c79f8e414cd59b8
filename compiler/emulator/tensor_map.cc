// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/tensor_map.h"

namespace kiln::emulator {
namespace {

constexpr uint32_t kSwizzleBytes[] = {0, 32, 64, 128};

std::string Number(uint64_t v) { return std::to_string(v); }
std::string Of(const char* array, uint32_t i) { return std::string(array) + "[" + Number(i) + "]"; }

bool IsFloat(TensorType type) { return type >= TensorType::kF16; }

std::string CheckDimension(const TensorMapSpec& spec, uint32_t i) {
  if (spec.dims[i] == 0 || spec.dims[i] > uint64_t{1} << 32) {
    return Of("globalDim", i) + " is " + Number(spec.dims[i]) + "; it must be in 1 … 2^32";
  }
  if (spec.box[i] == 0 || spec.box[i] > 256) return Of("boxDim", i) + " is " + Number(spec.box[i]) + "; it must be in 1 … 256";
  if (spec.element_strides[i] == 0 || spec.element_strides[i] > 8) {
    return Of("elementStrides", i) + " is " + Number(spec.element_strides[i]) + "; it must be in 1 … 8";
  }
  if (i == 0) return {};
  const uint64_t stride = spec.strides[i - 1];
  if (stride % 16 != 0 || stride >= uint64_t{1} << 40) {
    return Of("globalStrides", i - 1) + " is " + Number(stride) + "; it must be a multiple of 16 below 2^40";
  }
  return {};
}

std::string Check(const TensorMapSpec& spec) {
  if (spec.rank < 1 || spec.rank > kMaxTensorRank) return "tensorRank is " + Number(spec.rank) + "; it must be in 1 … 5";
  if (spec.address % 16 != 0) return "globalAddress is not a multiple of 16";
  for (uint32_t i = 0; i < spec.rank; ++i) {
    if (std::string problem = CheckDimension(spec, i); !problem.empty()) return problem;
  }
  const uint32_t row = spec.box[0] * BytesOf(spec.type), span = kSwizzleBytes[size_t(spec.swizzle)];
  if (row % 16 != 0) return "the box's innermost dimension has " + Number(row) + " bytes; they must be a multiple of 16";
  if (span != 0 && row > span) {
    return "the box's innermost dimension has " + Number(row) + " bytes; a swizzle of " + Number(span) + " takes at most those";
  }
  if (spec.fill == TensorFill::kNan && !IsFloat(spec.type)) return "NaN fills only tensors of a floating-point type";
  return {};
}

}  // namespace

uint32_t BytesOf(TensorType type) {
  static constexpr uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return kBytes[size_t(type)];
}

uint32_t TensorMap::BoxBytes() const {
  uint32_t bytes = BytesOf(type);
  for (uint32_t i = 0; i < rank; ++i) bytes *= Extent(i);
  return bytes;
}

uint32_t TensorMap::RowBytes() const { return box[0] * BytesOf(type); }
uint32_t TensorMap::Pitch() const { return swizzle == TensorSwizzle::kNone ? RowBytes() : kSwizzleBytes[size_t(swizzle)]; }

std::expected<TensorMap, std::string> EncodeTensorMap(const TensorMapSpec& given) {
  TensorMapSpec spec = given;
  uint64_t dense = BytesOf(spec.type);
  for (uint32_t i = 0; i + 1 < spec.rank && i + 1 < kMaxTensorRank; ++i) {
    dense *= spec.dims[i];
    if (spec.strides[i] == 0) spec.strides[i] = dense;
    dense = spec.strides[i];
  }
  if (std::string problem = Check(spec); !problem.empty()) return std::unexpected("no tensor map: " + problem);
  TensorMap map;
  map.address = spec.address;
  map.rank = uint8_t(spec.rank);
  map.type = spec.type;
  map.swizzle = spec.swizzle;
  map.fill = spec.fill;
  for (uint32_t i = 0; i < spec.rank; ++i) {
    map.dims[i] = uint32_t(spec.dims[i] - 1);
    map.box[i] = uint16_t(spec.box[i]);
    map.element_strides[i] = i == 0 ? uint8_t{1} : uint8_t(spec.element_strides[i]);
    if (i > 0) map.strides[i - 1] = spec.strides[i - 1];
  }
  return map;
}

}  // namespace kiln::emulator
