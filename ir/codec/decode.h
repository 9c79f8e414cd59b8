// SPDX-License-Identifier: Apache-2.0
//
// Bytes from anyone become a module, or diagnostics. Every reference is checked, every size bounded, every problem
// named; the result refers to nothing that is not there. Whether the program means something is the verifier's
// question.
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

// A serialized module or its text form (which starts with "kiln "), in which decisions of passes are refused: a request
// holds none, and its key does not see them.
std::expected<Module, Failed> DecodeModule(std::string_view bytes, Diagnostics& diagnostics);

}  // namespace kiln::ir
