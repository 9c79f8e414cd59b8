// SPDX-License-Identifier: Apache-2.0
//
// Stores of accumulator fragments to shared memory by stmatrix (compiler/accesses/matrices.h).
#pragma once

#include "compiler/llvm/lower/loop/neighbours.h"

namespace kiln::llvm_ir {

// The only store of a parallel loop, whose plan has the form kMatrix or kTransposed.
void StoreByMatrix(KernelContext& context, Memory& memory, const compiler::ThreadLoop& loop, Addresses& addresses, Vectors& vectors,
                   Neighbours& neighbours, const ir::Store& store);

}  // namespace kiln::llvm_ir
