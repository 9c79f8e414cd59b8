// SPDX-License-Identifier: Apache-2.0
//
// Functions whose text is PTX: LLVM's IR declares and calls them, and the PTX that LLVM makes of it gets their text.
#pragma once

#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/llvm/functions/fault.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

struct PtxParameter {
  int bits;
  bool is_float;
};

// The parameters of the function that the text defines: of 32 or 64 bits each. Faults: it defines none of this name, or one that gives something
// back or takes registers, vectors or bytes.
std::expected<std::vector<PtxParameter>, Fault> ParametersOf(const ir::Function& function);

// `ptx` with the functions' texts in the place of their declarations. A text is there once, without what it says of its version and target.
std::string WithDefinitions(std::string ptx, std::span<const ir::Function* const> functions);

}  // namespace kiln::llvm_ir
