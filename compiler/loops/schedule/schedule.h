// SPDX-License-Identifier: Apache-2.0
//
// Decides in which iteration and in which order the statements of a ring's loop run, so that products of groups of warps run while the
// threads compute. A product with a later use starts as early as what it reads is there; the wait for it stands as late as its first use
// allows. From some statement on, the body may belong to the iteration before (two stages): its products then run beside those of the next
// iteration.
//
//   for k in n { wait A; gemm a(k) → s; release A; p = f(s); wait B; gemm p, b(k) → o; release B }
//   → the first half for 0
//     for k in n − 1 { wait A; gemm a(k + 1) → s; wait B; gemm p, b(k) → o; async_wait 1 product s; release A; t = f(s)
//                      async_wait 0 product o; release B; p = t }
//     the second half for n − 1
//
// Every order that keeps conflicting statements in order is allowed. The cheapest one by the target's costs wins.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings, and the layouts of the parallel loops.
void Schedule(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
