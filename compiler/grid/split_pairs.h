// SPDX-License-Identifier: Apache-2.0
//
// Pairs of blocks for products of so few tiles that half of the multiprocessors would idle. Each block of a pair takes half of k; then each
// adds the two sums for half of the tile.
//
//   grid(n): fill c = 0; for k in e { gemm a, b → c }; copy c    →    grid(n, 2), cluster(1, 2), blocks x, half: fill c = 0;
//                                                                    for k in e/2 { gemm … k + half · e/2 → c };
//                                                                    pair_sum c → d; copy d to c's half
//
// If the statements after the loop do more than work on the sum's elements and store them, the first block runs all of them: pair_sum c; if
// half == 0 { … }.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: instructions, and SplitK before it. Applies only where c starts from zero, nothing but the product touches it in the loop, steps
// share nothing but the sum, all writes to global memory come after the loop, and the exchange fits shared memory.
void SplitPairs(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
