// SPDX-License-Identifier: Apache-2.0
//
// Products whose tile feeds fewer groups of warps than the block has: the others take parts of k instead of computing copies. Each
// has a sum of its own, and a reduction behind the loop joins them.
//
//   fill c = 0; for k { gemm a, b -> c }    →    fill parts[g, m, n] = 0; for k { gemm a, b -> parts }; reduce sum parts -> c dim 0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: instructions. Only where c starts from zero and nothing but the product touches it in the loop.
void SplitK(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
