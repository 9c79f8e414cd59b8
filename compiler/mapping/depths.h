// SPDX-License-Identifier: Apache-2.0
//
// Orders the depth of products so that a sum, converted to narrower elements, is the next product's A in the registers where it lies.
//
// A matrix instruction may want four neighbours along k in one register of 32 bits, where a thread of a sum has two neighbouring columns. A product
// adds over all of k, in any order: A's registers stay, and B's rows change places among the instruction's k of them. B's tile is then in that
// order wherever it is: the tile, the tensors that it is copied from, and the loops that write those, which go over the places and find the row of
// each.
//
//   for j: vt[d, b·n + j] = v[j, d]         →    for p: vt[d, b·n + p] = v[row(p), d]
//   copy vt[…] → tile                            copy vt[…] → tile
//   weights[i, j] = e4m3(scores[i, j])           (no exchange between threads)
//   gemm weights, tile → output                  gemm weights, tile → output as_sums
#pragma once

#include "compiler/options.h"
#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::compiler {

// Sets GemmPlan::as_sums. Applies only where all that reads or writes B's tile, and the workspaces that it is copied from, takes whole groups of
// rows, and the kernels themselves write those workspaces element by element.
ir::Result Depths(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
