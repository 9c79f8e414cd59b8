// SPDX-License-Identifier: Apache-2.0
//
// Products of so few tiles that half of the multiprocessors would idle: pairs of blocks take half of k each, and add their sums, each
// block for half of the tile.
//
//   grid(n): fill c = 0; for k in e { gemm a, b → c }; copy c    →    grid(n, 2), cluster(1, 2), blocks x, half: fill c = 0;
//                                                                    for k in e/2 { gemm … k + half · e/2 → c };
//                                                                    pair_sum c → d; copy d to c's half
//
// Where what follows the loop does more than work on the sum's elements and store them, the first block does all of it:
// pair_sum c; if half == 0 { … }.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: instructions, and SplitK before it. Only where c starts from zero, nothing but the product touches it in the loop, no step leaves
// anything else to another or to what follows, what the kernel writes to global memory is behind the loop, and the exchange fits shared memory.
void SplitPairs(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
