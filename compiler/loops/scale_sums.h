// SPDX-License-Identifier: Apache-2.0
//
// Moves factors from operands to sums. Where warps compute a product with mma.sync, and a row of the operand in registers shares a factor
// along k, the product takes the elements without the factor, and its sum is multiplied instead. A product with few rows has fewer sums
// than elements, and a factor rounds once instead of once an element. The pass needs fast_math, because results round elsewhere than the
// program says. The sum without the factor must lie in float32's range: where it does not, a factor of 0 gives NaN. Products in flight stay
// as they are: a wait for each product would cost as much as the factors.
//
//   parallel i, j in n, k { w[i, j] = f(i, j) · s[i] }; gemm a, w → c    →    parallel i, j in n, k { w[i, j] = f(i, j) }; gemm a, w → p
//                                                                          parallel m, i { c[m, i] += p[m, i] · s[i] }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: instructions, SplitK and SplitOperands before it.
void ScaleSums(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
