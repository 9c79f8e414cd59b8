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

// AMD's selection keeps a condition that is the same in all threads in the scalar unit's flag from its comparison to its last use of a block. Every
// sum of that unit changes the flag, so selection looks for one instruction that does not, and makes all sums before it. This takes time and
// scalar registers without end. Where such conditions choose more values of a block than this, they become the vector unit's, whose sums leave
// the flag alone.
constexpr size_t kMostChosen = 96;
void ChooseByVectorUnit(llvm::Function& function);

}  // namespace kiln::llvm_ir
