// SPDX-License-Identifier: Apache-2.0
//
// Overlaps products whose sums start anew in each iteration, as with block scales. Where the loop's body holds several iterations
// (loops/prefetch.h), each product starts, in registers of its own, before the previous sum is used. The use of one sum then runs while the
// next product is computed.
//
//   wait; gemm → p; release; advance; use p;    →    wait; gemm → p; advance; wait; gemm → q; advance; async_wait 1 product p; release
//   wait; gemm → p; release; advance; use p          behind 2; use p; async_wait 0 product q; release behind 1; use q
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings, and bodies repeated by Prefetch. Applies only where one group of warps computes and both sums fit into its registers.
void Overlap(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
