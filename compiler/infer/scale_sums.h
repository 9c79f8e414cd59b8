// SPDX-License-Identifier: Apache-2.0
//
// Products by warps whose operand is computed into registers with a factor that a row of it shares along k: the operand's elements go into
// the product without the factor, whose place is the product's sum. Sums are fewer than elements where the product has few rows, and a
// factor rounds once instead of once an element. Under fast_math, since results round elsewhere than the program says, and the sum without the
// factor must lie in float32's range: where it does not, a factor of 0 gives NaN. Products in flight are left alone: measured on one H200, to
// wait for each costs what the factors do.
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
