// SPDX-License-Identifier: Apache-2.0
//
// The one place where a cache key is computed. A key holds everything that can change the output (the program in canonical
// bytes, target, options, compiler build) and nothing else. No LLVM below this header: the gRPC process links it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "ir/module.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::compiler {

// SHA-256.
using Key = std::array<uint8_t, 32>;

// Identifies the compiler's sources and the LLVM it was built against; equal for two builds of one tree in different folders.
std::string_view BuildId();

// `target` must be the canonical name (target::Find).
Key ComputeKey(const ir::Module& module, std::string_view target, const v1::CompileOptions& options);

// Of what is asked of whichever build of the compiler.
Key ProgramKey(const ir::Module& module, std::string_view target, const v1::CompileOptions& options);

// Of the same with a cubin, which a ptxas of that version text makes.
Key WithPtxas(const Key& key, std::string_view ptxas);

}  // namespace kiln::compiler
