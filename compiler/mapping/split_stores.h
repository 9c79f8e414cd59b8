// SPDX-License-Identifier: Apache-2.0
//
// Tensor stores by warp groups. Where each group of four warps writes whole boxes of a tile, and the tile is then only stored, each group
// stores its own boxes and waits for no other group. The groups of a persistent block drift apart, so one group's epilogue runs during
// another's products.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Applies to kernels with warp roles. Needs: layouts.
void SplitStores(ir::Module& module, ir::Kernel& kernel, const Context&);

}  // namespace kiln::compiler
