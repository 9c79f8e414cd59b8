// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// For each instruction that reads or writes a register, ptxas (13.0, with -O1 to -O3) walks through all instructions that do, where wgmma adds to the
// register: the time grows with the cube of the products that one after the other add to the same sums. A function that waits for more than
// kMostWaits groups of products hands the sums on in other registers behind each wait for all of them. ptxas then gives them the same
// registers of the GPU again, so its code does not change.
constexpr size_t kMostWaits = 16;
void PartAccumulators(llvm::Function& function);

}  // namespace kiln::llvm_ir
