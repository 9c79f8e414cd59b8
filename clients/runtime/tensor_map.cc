// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "compiler/emulator/tensor_map.h"

namespace kiln::runtime {
namespace {

constexpr uint32_t kUnit = 16;  // bytes: of strides, and of a box's innermost dimension
constexpr uint32_t kMaxBox = 256;
constexpr uint64_t kMaxExtent = (uint64_t(1) << 31) - (1 << 17);  // kernels count in 32 bits, a tile beyond the end
constexpr uint64_t kStrideLimit = uint64_t(1) << 40;              // bytes
constexpr std::array<uint32_t, 4> kSwizzles = {0, 32, 64, 128};   // CUtensorMapSwizzle counts them so
// The L2 fetches lines of 128 bytes as they are asked for. Fetching pairs slows down tiles that stream from memory, and helps nowhere else.
constexpr int kInterleaveNone = 0, kPromotion128 = 2, kFillZeros = 0;

// CUtensorMapDataType. Types it lacks are moved as integers of their size.
std::optional<int> TensorMapType(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 6;
    case DType::kF32:
    case DType::kTF32: return 7;  // its own TFLOAT32 rounds
    case DType::kF64: return 8;
    case DType::kBF16: return 9;
    case DType::kI32: return 3;
    case DType::kI64: return 5;
    default: break;
  }
  const DTypeInfo* info = Find(dtype);
  switch (info ? info->bits : 0) {
    case 8: return 0;
    case 16: return 1;
    case 32: return 2;
    case 64: return 4;
    default: return std::nullopt;
  }
}

// Panels are counted by a dimension of their own.
size_t RankOf(const TensorMap& map) { return map.box.size() + (map.panels > 1); }

// `rank`: of the tensor or view that it is of.
Result<void> CheckBox(const TensorMap& map, const LaunchParam& param, size_t rank) {
  if (map.box.empty() || RankOf(map) > kMaxTensorMapRank || map.box.size() != rank)
    return ArtifactError(
        fmt::format("a tensor map of {} has a box of {} dimensions; it needs the tensor's, of which there are {}, and 1 to {}, one "
                    "fewer where it has panels",
                    param.name, map.box.size(), rank, kMaxTensorMapRank));
  if (map.panels > kMaxBox)
    return ArtifactError(fmt::format("a tensor map of {} has {} panels; 1 to {} are possible", param.name, map.panels, kMaxBox));
  for (uint32_t extent : map.box)
    if (extent < 1 || extent > kMaxBox)
      return ArtifactError(
          fmt::format("a tensor map of {} has a box of {} elements along a dimension; 1 to {} are possible", param.name, extent, kMaxBox));
  return {};
}

std::string CheckExtents(const Tensor& tensor, size_t rank) {
  if (tensor.shape.size() != rank) return fmt::format("it has {} dimensions, not {}", tensor.shape.size(), rank);
  for (size_t dim = 0; dim < rank; ++dim)
    if (tensor.shape[dim] < 1 || uint64_t(tensor.shape[dim]) > kMaxExtent)
      return fmt::format("extent {} is {}; it must be in 1 … {}", dim, tensor.shape[dim], kMaxExtent);
  return {};
}

// Bytes from one index of dimension `dim` to the next; `row_major` elements where the tensor names none.
std::expected<uint64_t, std::string> StrideBytes(const Tensor& tensor, size_t dim, int64_t row_major, uint32_t element) {
  const int64_t stride = tensor.strides ? tensor.strides[dim] : row_major;
  if (tensor.shape[dim] == 1) return kUnit;  // leads nowhere, and may have been given as anything
  if (stride <= 0 || uint64_t(stride) >= kStrideLimit / element)
    return std::unexpected(fmt::format("stride {} is {}; it must be positive and below 2^40 bytes", dim, stride));
  const uint64_t bytes = uint64_t(stride) * element;
  if (bytes % kUnit != 0) return std::unexpected(fmt::format("stride {} has {} bytes; they must be a multiple of {}", dim, bytes, kUnit));
  return bytes;
}

Result<void> Emulate(const TensorMapSpec& spec, EncodedTensorMap& encoded) {
  const auto map = emulator::EncodeTensorMap({.type = emulator::TensorType(spec.type),
                                              .rank = spec.rank,
                                              .address = spec.address,
                                              .dims = spec.dims,
                                              .strides = spec.strides,
                                              .box = spec.box,
                                              .element_strides = {1, 1, 1, 1, 1},
                                              .swizzle = emulator::TensorSwizzle(spec.swizzle),
                                              .fill = emulator::TensorFill::kZero});
  if (!map) return ArgumentError(map.error());
  encoded.bytes = std::bit_cast<decltype(encoded.bytes)>(*map);
  return {};
}

// As the user wrote it, outermost dimension first.
std::string Describe(const TensorMapSpec& spec) {
  const auto reversed = [](const auto& list, size_t count) {
    return fmt::format("{}", fmt::join(std::make_reverse_iterator(list.begin() + count), std::make_reverse_iterator(list.begin()), "×"));
  };
  return fmt::format("address {:#x}, shape {}, strides of {} bytes, boxes of {}, swizzle of {} bytes", spec.address, reversed(spec.dims, spec.rank),
                     spec.rank > 1 ? reversed(spec.strides, spec.rank - 1) : "no", reversed(spec.box, spec.rank), kSwizzles[size_t(spec.swizzle)]);
}

}  // namespace

Result<void> CheckTensorMap(const TensorMap& map, std::span<const LaunchParam> params, std::span<const LaunchView> views) {
  if (map.tensor >= params.size() || !params[map.tensor].tensor)
    return ArtifactError("a tensor map is of a parameter that is not there or no tensor");
  const LaunchParam& param = params[map.tensor];
  if (!TensorMapType(param.dtype))
    return ArtifactError(fmt::format("a tensor map is of {}, whose type {} it cannot have", param.name, Name(param.dtype)));
  if (map.view > views.size() || (map.view != 0 && views[map.view - 1].tensor != map.tensor))
    return ArtifactError(fmt::format("a tensor map of {} is of a view that is not there or of another tensor", param.name));
  if (auto ok = CheckBox(map, param, map.view == 0 ? param.shape.size() : views[map.view - 1].shape.size()); !ok) return ok;
  if (std::ranges::find(kSwizzles, map.swizzle_bytes) == kSwizzles.end())
    return ArtifactError(
        fmt::format("a tensor map of {} has a swizzle of {} bytes; {} are possible", param.name, map.swizzle_bytes, fmt::join(kSwizzles, ", ")));
  const uint64_t row = Bytes(*Find(param.dtype), map.box.back());
  if (row % kUnit != 0 || (map.swizzle_bytes != 0 && row > map.swizzle_bytes))
    return ArtifactError(
        fmt::format("a tensor map of {} has boxes with rows of {} bytes and a swizzle of {}; rows are multiples of {} bytes "
                    "and fit in the swizzle",
                    param.name, row, map.swizzle_bytes, kUnit));
  return {};
}

Tensor MappedTensor(const TensorMap& map, const Tensor& tensor, std::span<const BoundView> views) {
  Tensor mapped = tensor;
  if (map.view != 0) mapped.shape = views[map.view - 1].shape, mapped.strides = views[map.view - 1].strides.data();
  return mapped;
}

std::expected<TensorMapSpec, std::string> DescribeTensor(const TensorMap& map, const LaunchParam& param, const Tensor& tensor) {
  const size_t rank = map.box.size();
  if (std::string problem = CheckExtents(tensor, rank); !problem.empty()) return std::unexpected(std::move(problem));
  const uint32_t element = Find(param.dtype)->bits / 8;
  TensorMapSpec spec{.type = *TensorMapType(param.dtype), .rank = uint32_t(rank), .address = tensor.data};
  spec.swizzle = int(std::ranges::find(kSwizzles, map.swizzle_bytes) - kSwizzles.begin());
  int64_t row_major = 1;  // does not overflow: ElementCount has passed, and no extent is 0
  for (size_t i = 0; i < rank; ++i) {
    const size_t dim = rank - 1 - i;
    const int64_t extent = tensor.shape[dim];
    spec.dims[i] = uint64_t(extent);
    spec.box[i] = map.box[dim];
    if (i > 0) {
      auto stride = StrideBytes(tensor, dim, row_major, element);
      if (!stride) return std::unexpected(std::move(stride.error()));
      spec.strides[i - 1] = *stride;
    } else if (tensor.strides && extent > 1 && tensor.strides[dim] != 1) {
      return std::unexpected(fmt::format("stride {} is {}; it must be 1", dim, tensor.strides[dim]));
    }
    row_major *= extent;
  }
  if (map.panels <= 1) return spec;
  if (spec.dims[0] % spec.box[0] != 0)
    return std::unexpected(fmt::format("extent {} is {}; it must be a multiple of {}", rank - 1, spec.dims[0], spec.box[0]));
  spec.dims[rank] = spec.dims[0] / spec.box[0];
  spec.dims[0] = spec.box[0];
  spec.strides[rank - 1] = uint64_t(spec.box[0]) * element;
  spec.box[rank] = map.panels;
  spec.rank = uint32_t(rank + 1);
  return spec;
}

Result<void> EncodeTensorMap(const Driver& driver, const TensorMapSpec& spec, std::string_view kernel, std::string_view tensor,
                             EncodedTensorMap& encoded) {
  static constexpr std::array<uint32_t, kMaxTensorMapRank> kEveryElement = {1, 1, 1, 1, 1};
  const int status = driver.tensor_map_encode(encoded.bytes.data(), spec.type, spec.rank, spec.address, spec.dims.data(), spec.strides.data(),
                                              spec.box.data(), kEveryElement.data(), kInterleaveNone, spec.swizzle, kPromotion128, kFillZeros);
  if (status == 0) [[likely]]
    return {};
  Error error = driver.MakeError(status, fmt::format("encode a tensor map of {}.{} ({})", kernel, tensor, Describe(spec)));
  error.message += "; compile with CompileOptions.disable_tma, and the kernel needs none";
  return std::unexpected(std::move(error));
}

Result<std::vector<EncodedTensorMap>> EmulateTensorMaps(const Binder& binder, std::span<const Arg> args, const Binding& binding) {
  const LaunchInfo& info = binder.info();
  std::vector<EncodedTensorMap> maps(info.tensor_maps.size());
  for (size_t i = 0; i < info.launches.size(); ++i) {
    for (const KernelArg& arg : info.launches[i].args) {
      if (binding.grids[i].empty || arg.kind != KernelArg::Kind::kTensorMap) continue;
      const TensorMap& map = info.tensor_maps[arg.index];
      auto spec = DescribeTensor(map, info.params[map.tensor], MappedTensor(map, args[map.tensor].tensor, binding.views));
      if (!spec) return ArgumentError(fmt::format("{}.{}: {}", binder.name(), info.params[map.tensor].name, spec.error()));
      if (auto ok = Emulate(*spec, maps[arg.index]); !ok) return std::unexpected(ok.error());
    }
  }
  return maps;
}

}  // namespace kiln::runtime
