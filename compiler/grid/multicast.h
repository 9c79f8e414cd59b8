// SPDX-License-Identifier: Apache-2.0
//
// Clusters of two blocks. Neighbours along an axis of the grid that need the same tile in every step of a loop take turns: one loads it for
// both. The pass does so where tiles reach a multiprocessor more slowly than its products need them and a step holds nothing but products.
// It leaves alone a kernel whose program asks for a cluster itself.
//
// Why two: clusters of two large blocks fill an H200, while clusters of four or eight leave some of its multiprocessors idle. A grid of as
// many blocks as multiprocessors would then take two turns, and wider tiles in larger clusters do not make up for that.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings.
void Multicast(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
