// SPDX-License-Identifier: Apache-2.0
//
// Splits k among groups of warps. Where a product's tile feeds fewer groups than the block has, the groups take parts of k instead of
// computing the same result several times. Each part has a sum of its own, and a reduction after the loop joins the sums.
//
//   fill c = 0; for k { gemm a, b -> c }    →    fill parts[g, m, n] = 0; for k { gemm a, b -> parts }; reduce sum parts -> c dim 0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: instructions. Applies only where c starts from zero and nothing but the product touches it in the loop.
void SplitK(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
