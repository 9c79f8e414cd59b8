// SPDX-License-Identifier: Apache-2.0
//
// Parts of a long kernel become functions.
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// Makes functions of parts of every kernel of `module` that has more than twice kLongPart blocks, where a long block counts as many. The time
// and the memory that ptxas takes for a function grow with the square of its blocks, and of the instructions of a block. A part has one entry,
// about kLongPart blocks, and few values that it takes or gives; what has no such part stays as it is. For code that is not optimized: calls
// cost registers and moves.
constexpr size_t kLongPart = 256;
void OutlineLongKernels(llvm::Module& module);

}  // namespace kiln::llvm_ir
