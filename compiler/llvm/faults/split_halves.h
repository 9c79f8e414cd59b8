// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// LLVM's optimizer leaves stores of f16 and bf16 in a thread's arrays for which it has forgotten the alignment, and then stores them byte by byte.
// ptxas (13.0) takes the store of the low byte of an integer that was converted to bf16 for a conversion to an integer of 8 bits (F2I.U8). This
// gives loads and stores of such floats the alignment that their address has.
void KeepHalvesWhole(llvm::Function& function);

}  // namespace kiln::llvm_ir
