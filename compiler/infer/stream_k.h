// SPDX-License-Identifier: Apache-2.0
//
// Stream-K. Where tiles do not come out even over the multiprocessors, or are fewer, blocks share the steps of those that are left: each
// takes as many, one behind the other, whatever tiles they belong to. The block that has a tile's first step owns the tile; those behind
// it leave their parts of its sum in memory, and the owner adds them in their order: the same program gives the same bits. Measured on
// one H200: blocks that read the same operands in step with each other have them from L2 together; so each tile is cut into as many
// parts, unless a cost model (rules/stream_cost.h) expects even more of cuts anywhere.
//
//   grid(X, Y), (x, y): fill c = 0; for k in S { gemm a, b → c }; copy c
//     →  grid(B), b: for t in whole turns { as persistent blocks do }; part = sharing − 1 − b: steps [first, last) of those left;
//          for turn in tiles of them { tile, steps [from, to) of it; fill c = 0; for k in to − from { gemm … k + from → c };
//          stream_sum c; if from == 0 { copy c } }
//
// Blocks wait only for ones with smaller numbers, which start before them.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings. Not where the order of tiles is as good, or where something but products of a ring's stages happens in the loop, a sum
// does not start from zero, or something is written before it is complete.
void StreamK(ir::Module& module, ir::Kernel& kernel, const Context& context);

// Whether it has done so: the blocks wait for each other as they are numbered, and are neither paired nor given other tiles.
bool IsStreamed(const ir::Kernel& kernel);

}  // namespace kiln::compiler
