// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// The bits of a constant f16 read as a bf16, or the other way round, are a constant, but LLVM 22 leaves them as an expression of constants. Where
// arithmetic takes one of two such, AMDGPUCodeGenPrepare converts each of them first, cannot, and ends with a segmentation fault. This makes plain
// constants of them.
void FoldConstantBits(llvm::Function& function);

}  // namespace kiln::llvm_ir
