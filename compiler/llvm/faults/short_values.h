// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// ptxas (13.0, with -O1 to -O3, and the driver) keeps two values of 16 bits in one register. If it has to put both into memory, it stores or loads
// the low one twice in places: behind a branch that gave one of them a new value (sass/lost_halves.h finds that in its code), and behind a loop that
// handed both on. Registers of 32 bits have no halves to it. So values of up to 16 bits go from block to block in registers of 32 bits: two floats
// together, integers and a float that is left alone.
void WidenShortValues(llvm::Function& function);

}  // namespace kiln::llvm_ir
