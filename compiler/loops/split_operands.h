// SPDX-License-Identifier: Apache-2.0
//
// Splits products along k, where groups of warps compute the product and its operand is computed into registers in the same loop. The
// product of each piece runs while the operand of the next piece is computed.
//
//   parallel i, j in n, k { w[i, j] = f(i, j) }; gemm a, w → c    →    parallel i, j in n, k/2 { w[i, j] = f(i, j) }; gemm a[…, 0], w → c
//                                                                      in flight; parallel i, j in n, k/2 { v[i, j] = f(i, j + k/2) };
//                                                                      gemm a[…, k/2], v → c
//
// Where each warp computes its part by itself (GemmPlan::by_warps), no product is in flight; the pieces then just need fewer registers.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: instructions, and SplitK before it.
void SplitOperands(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
