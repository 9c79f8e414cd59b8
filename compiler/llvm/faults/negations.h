// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// The minimum and the maximum of three signed integers are one instruction on sm_90 (VIMNMX3). If the second of them is negated, ptxas (13.0, with
// -O1 to -O3, and the driver) takes it for an operand that the instruction negates itself, which it cannot: the negation is lost. This subtracts from
// a zero that ptxas does not know instead, wherever what is negated comes to a minimum or a maximum. It is done for every GPU of NVIDIA, because the
// driver of a newer one assembles PTX for an older one.
void HideNegations(llvm::Function& function);

}  // namespace kiln::llvm_ir
