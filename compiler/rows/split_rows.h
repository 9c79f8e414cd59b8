// SPDX-License-Identifier: Apache-2.0
//
// Splits rows that one block's registers cannot hold among the blocks of a cluster. Reductions along the row join the parts through shared
// memory. Every block runs the statements that do not go along the row, and the first block stores their results.
//
//   grid(M) blocks(b): tile[1, n] = x[b, :]; reduce tile    →    grid(8 · M) cluster(8) blocks(c): b = c / 8, rank = c mod 8;
//                                                                tile[1, n / 8] = x[b, rank · n / 8 + …]; reduce tile cluster
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Runs before anything is chosen. Applies only where every use of the row's elements goes along it and the target has clusters.
void SplitRows(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
