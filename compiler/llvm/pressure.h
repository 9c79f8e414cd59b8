// SPDX-License-Identifier: Apache-2.0
//
// How many registers the values of a kernel would take, before any of them is given one.
#pragma once

#include <cstddef>

namespace llvm {
class Module;
}

namespace kiln::llvm_ir {

// The most 32-bit registers that the values of one thread take at any place of any function; counting ends beyond `enough`. Conditions, and
// addresses at a constant offset from another, take none. Time in proportion to the code and to `enough` for each block.
size_t MostLiveRegisters(const llvm::Module& module, size_t enough);

}  // namespace kiln::llvm_ir
