// SPDX-License-Identifier: Apache-2.0
//
// Whether two kernels computed the same: numbers agree within what their type holds, since another order of additions gives other roundings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kiln/v1/ir.pb.h"

namespace kiln::server {

// Reads `bytes` bytes at `position` of a tensor's storage; false where they cannot be read.
using ReadBytes = std::function<bool(std::uint64_t position, char* data, std::uint64_t bytes)>;

// Why `ours` does not agree with `theirs`, of so many bytes each; nothing where it does. Integers, and types that this host has no arithmetic
// for, agree when they are equal; floats when they differ by no more than a part, by their type, of the value and of the tensor's root mean
// square, and are not finite in the same places. The root mean square leaves out values that are larger than most by more than the type has
// digits: a -1e30 that stands for "masked" says nothing of how exact the others are.
std::optional<std::string> Disagreement(v1::DType dtype, std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs);

// Why it says little that a tensor agrees with `theirs`; nothing where it says enough. Many wrong kernels write zeros, or no numbers.
std::optional<std::string> SaysLittle(v1::DType dtype, std::uint64_t bytes, const ReadBytes& theirs);

}  // namespace kiln::server
