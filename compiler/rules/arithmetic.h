// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Operations that one iteration of a parallel loop takes on average. What uses some of the loop's variables only is computed once for all
// iterations that differ in the others.
struct Operations {
  double full = 0;     // sums and products of floats, moves: one of each lane in a cycle
  double half = 0;     // all others that are not special: integers, comparisons, choices, conversions
  double special = 0;  // of the special-function unit
  double around = 0;   // full ones with which a special function is made of what the unit computes
};
Operations OperationsOf(const ir::Module& module, const ir::For& loop);

// Cycles of a multiprocessor that the threads of the kernel take for what the statement computes with their registers: its operations at one
// a lane and cycle, or its special functions on their own unit if these take longer. Index arithmetic and accesses to memory count as nothing.
double ArithmeticCycles(const ir::Module& module, const ir::Kernel& kernel, const ir::Stmt& stmt, const target::Target& target);
// The same before there are layouts, with each element computed once.
double ArithmeticCycles(const ir::Module& module, const ir::Stmt& stmt, const target::Target& target);

}  // namespace kiln::compiler
