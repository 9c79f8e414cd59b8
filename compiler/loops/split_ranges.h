// SPDX-License-Identifier: Apache-2.0
//
// Conditions that mask elements (a causal mask, a window, the last tile) hold for all elements of a tile in most iterations. A loop is divided
// where they begin or cease to do so, and the part between has no masks. Masks that hold wherever they stand are gone, too.
//
//   for k in n { for i, j: s[i, j] = select(row + i >= k · 128 + j, x, −inf) }
//   → m = min(floordiv(row − 127, 128) + 1, n)
//     for k in m { for i, j: s[i, j] = x }
//     for k in n − m { the same as before with k + m }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: the layouts of the parallel loops. Before places in shared memory and barriers are chosen.
void SplitRanges(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
