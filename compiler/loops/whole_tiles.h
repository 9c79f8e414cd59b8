// SPDX-License-Identifier: Apache-2.0
//
// Loads into registers from a tensor whose end only the launch knows each stand behind a condition, and the next one waits for it. Blocks whose tile
// lies inside of the tensor, most of them, go by the same loop without conditions, whose loads are under way together.
//
//   for i, j: a[i, j] = a[i, j] * scale[row + i]        scale: f32[m]
//   → if row + 127 < m { for i, j: … } else { for i, j: … }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: the layouts of the parallel loops, and masks removed where they hold.
void WholeTiles(ir::Module& module, ir::Kernel& kernel, const Context&);

}  // namespace kiln::compiler
