// SPDX-License-Identifier: Apache-2.0
//
// Tiles that are read behind a kernel's products, as a residual is. Instead of every thread's own loads, which wait for memory and
// bring few bytes each, a tensor copy fills a shared tile: the last of a block's loads, it is under way while the last products are.
//
//   for k in pipelined { …; gemm … → c }               for k in pipelined { …; gemm … → c }
//   for i, j: c[i, j] += r[m + i, n + j]      →        copy r[m, n] → r_in; for i, j: c[i, j] += r_in[i, j]
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// After the products of the kernel have their instructions, before other copies become tensor copies. Only where shared memory holds
// the tile beside enough stages of the loop.
void TileReads(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
