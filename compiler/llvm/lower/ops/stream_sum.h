// SPDX-License-Identifier: Apache-2.0
//
// Blocks that share the steps of a tile (grid/stream_k.h): parts of its sum pass through global memory. A thread of the owner adds what
// the thread of the same number in another block left. The program alone thus determines the order of all additions.
#pragma once

#include "compiler/llvm/lower/barriers.h"
#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

void LowerStreamSum(KernelContext& context, Evaluator& evaluator, Memory& memory, Barriers& barriers, const ir::StreamSum& sum);

}  // namespace kiln::llvm_ir
