// SPDX-License-Identifier: Apache-2.0
//
// Stream-K. Tiles may be fewer than multiprocessors, or leave a last turn that not all have a tile for. Blocks then share the steps of the
// tiles that are left: each takes an equal number of consecutive steps, whatever tiles they belong to. The block that has a tile's first
// step owns the tile. The blocks with later steps leave their parts of the sum in memory, and the owner adds them in order, so the same
// program gives the same bits. Blocks that read the same operands at the same time share them in L2. Each tile is therefore cut into the
// same number of parts, unless a cost model (rules/stream_cost.h) expects more from cuts at arbitrary steps.
//
//   grid(X, Y), (x, y): fill c = 0; for k in S { gemm a, b → c }; copy c
//     →  grid(B), b: for t in whole turns { as persistent blocks do }; part = sharing − 1 − b: steps [first, last) of those left;
//          for turn in tiles of them { tile, steps [from, to) of it; fill c = 0; for k in to − from { gemm … k + from → c };
//          stream_sum c; if from == 0 { copy c } }
//
// A block waits only for blocks with smaller numbers, which start before it.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings. Does nothing where persistent blocks are as good, where the loop does something besides products of a ring's stages, where
// a sum does not start from zero, or where the kernel writes something before the sum is complete.
void StreamK(ir::Module& module, ir::Kernel& kernel, const Context& context);

// Whether StreamK changed the kernel. If so, its blocks wait for each other in the order of their numbers; they must not be paired or given
// other tiles.
bool IsStreamed(const ir::Kernel& kernel);

}  // namespace kiln::compiler
