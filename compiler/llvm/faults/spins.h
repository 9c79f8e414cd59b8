// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// NVIDIA's shared memory has atomic operations of 32-bit integers, and exchanges. Of any other (a sum of floats) ptxas makes a loop of attempts,
// which each thread leaves when its own attempt succeeds. If the atomic is the first that a loop around it does, ptxas (13.0, for sm_75 to sm_90a,
// with -O1 to -O3) makes one loop of both: the threads of a warp then come to the end of the outer loop's body one after another. Yet the outer
// loop's counter stays one register for the whole warp, which each of them counts on, so that others leave the loop too early. An instruction that
// ptxas neither moves nor drops keeps the loops apart: this puts one, which gathers the threads that are together already, before each such
// atomic in a loop.
void PartSpinsFromLoops(llvm::Function& function);

}  // namespace kiln::llvm_ir
