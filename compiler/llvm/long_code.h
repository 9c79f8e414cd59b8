// SPDX-License-Identifier: Apache-2.0
//
// Long code in forms for which LLVM's passes take time in proportion to its length.
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// Gives loops that nothing leaves a way to the kernel's end, which is never taken. To find what lies behind each block, LLVM begins at the
// kernel's ends; where it has none, it searches all blocks behind a block for one to begin at, again and again. For after SimplifyCFG, which
// would take the way out.
void GiveExits(llvm::Function& function);

// Instruction selection makes one graph of a block, and its time grows with the square of the graph. Cuts longer blocks. Values that pass from
// one block to the next take a register or memory, so this is for code that the backend does not optimize.
constexpr size_t kMostOfBlock = 512;
void CutLongBlocks(llvm::Function& function);

}  // namespace kiln::llvm_ir
