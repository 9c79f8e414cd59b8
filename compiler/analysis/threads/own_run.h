// SPDX-License-Identifier: Apache-2.0
//
// Elements that each thread stores for itself: a loop of one store, which is written as serial or unrolled and whose iterations have no order.
//
//   unroll i in 8: tile[r, i] = A[n, i]   →   the same, vectorized, with a layout of registers alone
//
// From then on the loop is lowered as a parallel one is, by vectors; but every thread that comes to it runs all of its iterations.
#pragma once

#include <cstdint>

#include "compiler/analysis/digits.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The store; nullptr: the loop is none of these. It has one variable and a constant extent, uses no fragment, and no iteration reads what
// one writes. Each element belongs to one iteration of one of the `threads`: where several write it, the last iteration has the say.
ir::Store* StoreOfEach(const ir::Module& module, ir::Stmt& loop, const Digits& digits, const ir::ThreadRange& threads);

// `width` neighbours go together; it divides the extent.
void MakeRun(const ir::Module& module, ir::For& loop, int64_t width);

}  // namespace kiln::compiler
