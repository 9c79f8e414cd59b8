// SPDX-License-Identifier: Apache-2.0
//
// Long code in forms for which LLVM's passes take time in proportion to its length.
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// Gives loops that nothing leaves a way to the kernel's end, which is never taken. To find what lies behind each block, LLVM begins at the
// kernel's ends; where it has none, it searches all blocks behind a block for one to begin at, again and again. For after SimplifyCFG, which
// would take the way out. A function that returns a value stays as it is.
void GiveExits(llvm::Function& function);

// Instruction selection makes one graph of a block, and its time grows with the square of the graph. Cuts longer blocks. Values that pass from
// one block to the next take a register or memory, so this is for code that the backend does not optimize.
constexpr size_t kMostOfBlock = 512;
void CutLongBlocks(llvm::Function& function);

// AMD's selection keeps a condition that is the same in all threads in the scalar unit's flag from its first use to its last of a block. As every sum
// of that unit changes the flag, it makes all sums before. A condition that chooses between more addresses of a block than there are scalar
// registers for, becomes one of the vector unit's, whose sums leave it alone.
constexpr size_t kMostChosen = 48;
void ChooseByVectorUnit(llvm::Function& function);

}  // namespace kiln::llvm_ir
