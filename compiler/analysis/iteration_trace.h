// SPDX-License-Identifier: Apache-2.0
//
// What one iteration of a parallel loop certainly does to memory, its number put into all expressions.
#pragma once

#include <span>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct Touched {
  const ir::Stmt* stmt;
  ir::BufferId buffer;
  std::vector<ir::ExprId> indices;
  ir::ExprId value;  // that is written
  bool write;
};

// Accesses in order; for an inner loop, those of its first round. Leaves out what a condition that is not known, or an arm that is not
// chosen, may skip; locals, which each thread has for itself; and elements whose index another iteration may see differently. `loop` is of
// `module`, whose pool grows.
std::vector<Touched> TraceIteration(ir::Module& module, const ir::For& loop, std::span<const int64_t> iteration);

}  // namespace kiln::compiler
