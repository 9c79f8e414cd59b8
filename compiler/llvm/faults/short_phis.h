// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// ptxas (13.0, with -O1 to -O3, and the driver) keeps two values of 16 bits in one register. If it has to put both into memory behind a branch that
// gave one of them a new value, it stores the low one twice (sass/lost_halves.h finds that in its code). Registers of 32 bits have no halves to it. So
// values of up to 16 bits that branches choose between are chosen in registers of 32 bits: two of a block together, one that is left alone. What a
// loop hands on to its next iteration, or to what is behind it, stays as it is: the fault was not seen there, and pairs of such values are operands
// of products.
void WidenShortPhis(llvm::Function& function);

}  // namespace kiln::llvm_ir
