// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps: the descriptions of tensors that tensor copies (TMA) use. Limits and numbers are cuTensorMapEncodeTiled's: CUDA Driver API,
// "Tensor Map Object Management".
#pragma once

#include <array>
#include <cstddef>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clients/runtime/bind.h"
#include "clients/runtime/driver.h"

namespace kiln::runtime {

inline constexpr size_t kMaxTensorMapRank = 5;
inline constexpr uint32_t kTensorMapAlignment = 16;  // bytes that the tensor's address is a multiple of

// As a kernel takes it: by value.
struct alignas(64) EncodedTensorMap {
  std::array<std::byte, 128> bytes{};
};

// What encoders are told. Dimensions from the innermost on, as many as `rank`.
struct TensorMapSpec {
  int type = 0;  // CUtensorMapDataType
  uint32_t rank = 0;
  uint64_t address = 0;
  std::array<uint64_t, kMaxTensorMapRank> dims{};         // elements
  std::array<uint64_t, kMaxTensorMapRank - 1> strides{};  // bytes, of all but the innermost dimension
  std::array<uint32_t, kMaxTensorMapRank> box{};
  int swizzle = 0;  // CUtensorMapSwizzle
};

// Whether `map`, of an artifact with these parameters, can be encoded for some tensor.
Result<void> CheckTensorMap(const TensorMap& map, std::span<const LaunchParam> params, std::span<const LaunchView> views = {});

// What the map describes: the tensor, or its view, whose shape and strides stay in `views`.
Tensor MappedTensor(const TensorMap& map, const Tensor& tensor, std::span<const BoundView> views);

// For a map that CheckTensorMap accepted and a tensor that Binder accepted. The error names the property of the tensor that no map can
// hold.
std::expected<TensorMapSpec, std::string> DescribeTensor(const TensorMap& map, const LaunchParam& param, const Tensor& tensor);

// By the driver. What it refuses, the error calls `kernel`.`tensor`.
Result<void> EncodeTensorMap(const Driver& driver, const TensorMapSpec& spec, std::string_view kernel, std::string_view tensor,
                             EncodedTensorMap& encoded);

// The maps that the launches of `binding` use, for the emulator, by their number in the artifact; maps that no launch uses are zeros. A
// launch gets the map's address.
Result<std::vector<EncodedTensorMap>> EmulateTensorMaps(const Binder& binder, std::span<const Arg> args, const Binding& binding);

}  // namespace kiln::runtime
