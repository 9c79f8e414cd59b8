// SPDX-License-Identifier: Apache-2.0
//
// On the emulator, a parallel loop declares which elements in memory it writes: iteration by iteration, whatever its layout is. The
// emulator then reports an element that no thread wrote.
#pragma once

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

// Declares the elements that the loop writes. False: there are none to declare; else Device::EndClaim follows the loop.
bool BeginClaim(KernelContext& context, Evaluator& evaluator, Memory& memory, const ir::For& loop);

}  // namespace kiln::llvm_ir
