// SPDX-License-Identifier: Apache-2.0
//
// Leaves a copy to a shared tile out: what reads the tile element by element reads the tensor. For tiles that shared memory has no room for.
//
//   copy A[16 · k, 0; 16, 64] → tile; for i, j { x[i, j] = tile[j, i] }    →    for i, j { x[i, j] = A[16 · k + j, i] }
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Whether all that reads the copy's tile in the block, where nothing writes the tensor, are elements in parallel loops.
bool MayLoadDirectly(const ir::Module& module, const ir::Block& block, const ir::Copy& copy);
// Afterwards the block does not use the tile.
void LoadDirectly(ir::Module& module, ir::Block& block, const ir::Copy& copy);

}  // namespace kiln::compiler
