// SPDX-License-Identifier: Apache-2.0
//
// Tiles that the kernel reads after its products, for instance a residual. If every thread loads its own elements, it waits for memory, and
// each load brings few bytes. A tensor copy fills a shared tile instead. It is the block's last load and runs during the last products.
//
//   for k in pipelined { …; gemm … → c }               for k in pipelined { …; gemm … → c }
//   for i, j: c[i, j] += r[m + i, n + j]      →        copy r[m, n] → r_in; for i, j: c[i, j] += r_in[i, j]
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Runs after the products have their instructions and before other copies become tensor copies. Applies only where shared memory holds the
// tile beside enough stages of the loop.
void TileReads(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
