// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// NVIDIA's GPUs have no atomic operations of values below 32 bits, and in shared memory only those of 32-bit integers and exchanges. Of any other (a
// sum of floats, say) ptxas (13.0, for sm_75 to sm_90a, with -O1 to -O3) makes a loop of attempts, which each thread leaves when its own attempt
// succeeds. It makes that loop too late: it takes the warp's threads for together behind it. Then they are not gathered before the next barrier, and
// the counter of a loop around it stays one register for the whole warp, which each of them counts on, so that the loop ends too early. A loop that
// the PTX has is analyzed as any other. This writes it.
void WriteSpins(llvm::Function& function);

}  // namespace kiln::llvm_ir
