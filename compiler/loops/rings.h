// SPDX-License-Identifier: Apache-2.0
//
// Warp roles. Tensor copies of a pipelined loop go to 128 threads of their own, which run ahead of the others through a ring: as many
// stages of each tile as the loop asks for and shared memory holds, with an mbarrier each for filled and for emptied. Tiles that the
// same statement uses first share a ring. What the filling threads run is the kernel's slice for it (analysis/producer_slice.h).
//
//   for k {                                        ring acquire; copy A → As[stage]; copy B → Bs[stage]   filling thread
//     copy A → As; copy B → Bs; gemm As, Bs    →   ring wait; gemm As[stage], Bs[stage]; ring release     all others
//   }                                              ring advance                                           both
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Makes rings of the kernel's tensor loads where all of it can be done; else turns the loads into plain copies.
void Rings(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
