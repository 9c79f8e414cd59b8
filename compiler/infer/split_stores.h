// SPDX-License-Identifier: Apache-2.0
//
// Tensor stores by warp groups. Where each group of four warps writes whole boxes of a tile that is only stored then, it stores those
// itself and waits for nobody else: the groups of a persistent block drift apart, and one's epilogue runs under the other's products.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// In a kernel with warp roles, once layouts are known.
void SplitStores(ir::Module& module, ir::Kernel& kernel, const Context&);

}  // namespace kiln::compiler
