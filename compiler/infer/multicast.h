// SPDX-License-Identifier: Apache-2.0
//
// Clusters of two blocks. Neighbours along an axis of the grid that need the same tile in every step of a loop take turns: one loads it
// for both. Done where tiles reach a multiprocessor more slowly than its products need them and a step is products alone, and never for a
// cluster that the program asks for itself.
//
// Why two: an H200 holds 66 clusters of two large blocks at once, but 30 of four and 15 of eight. 128 blocks in fours take two turns, and
// tiles as wide as 120 blocks want gained nothing by fours or eights (128 × 8192 × 8192: 39.8 and 39.6 µs, in twos of narrower tiles 38.5).
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings.
void Multicast(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
