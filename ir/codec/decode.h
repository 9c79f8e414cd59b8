// SPDX-License-Identifier: Apache-2.0
//
// Turns bytes from anyone into a module or diagnostics. It checks every reference, bounds every size and names every problem; all
// references of the result are valid. Whether the program has a meaning is for the verifier to check.
#pragma once

#include <cstdint>
#include <expected>
#include <string_view>

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::ir {

// The format this reader knows: v1::Module.version.
inline constexpr uint32_t kFormatVersion = 1;

// A serialized kiln.v1.Module.
std::expected<Module, Failed> Decode(std::string_view bytes, Diagnostics& diagnostics);

// Reads a serialized module or its text form (which starts with "kiln "). Decisions of passes are refused: a request must not hold any,
// because its key does not include them.
std::expected<Module, Failed> DecodeModule(std::string_view bytes, Diagnostics& diagnostics);

}  // namespace kiln::ir
