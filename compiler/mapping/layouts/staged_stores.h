// SPDX-License-Identifier: Apache-2.0
//
// Stores that go through shared memory on their way from registers to memory.
//
// An accumulator lies so in registers that a thread holds few neighbours of a row. A loop that stores it has the same layout, and writes few bytes at
// a time to many lines. Where that costs more than the way through shared memory, the loop becomes two: one computes the values into a tile in
// shared memory, in the order of the fragments, and one copies the tile to memory, in memory's order.
//
//   for i, j: C[i, j] = bf16(c[i, j])    →    for i, j: tile[i, j] = bf16(c[i, j]);  for i, j: C[i, j] = tile[i, j]
#pragma once

#include "compiler/mapping/layouts/inference.h"

namespace kiln::compiler {

// Returns whether a loop was changed; then `uses` and `runs`, and what was inferred from them, are out of date.
bool StageStores(ir::Module& module, ir::Kernel& kernel, const Context& context, const FragmentUses& uses, const MemoryRuns& runs,
                 const Inferred& inferred);

}  // namespace kiln::compiler
