// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// ptxas (13.0, and the driver) mistakes operands of products of matrices of which it finds that they are constants:
// - 8-bit floats, which it widens to halves for sm_90: it takes 0x108 for the upper two elements of such a word, whatever they are;
// - the second operand of products of f16 and bf16 with k = 8, for every GPU from sm_75 to sm_120: it negates such a word as if it were an f32, so
//   that the lower half gets the wrong sign where the upper one is negative.
// So a word that is a constant, or is one on some way, is computed from the number of the multiprocessor, whose upper bit is 0, which ptxas does not
// know. What comes from another lane, or from the lane's number, it does see through.
void HideConstantOperands(llvm::Function& function);

}  // namespace kiln::llvm_ir
