// SPDX-License-Identifier: Apache-2.0
//
// Programs that compute addresses say what a tile is by the arithmetic of an offset and a mask: a[i, j] = masked(j < n − k, A[i · s + j + k], 0).
// Where that is a box of a strided tensor that tensor copies could move, the loop becomes a copy of a box of a view, and later passes see
// what they see in a program with tiles. Remainders go where nothing needs more than what they leave alone.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// After the kernel's expressions are folded and its parallel loops have been checked.
void Regions(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
