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

// In order, of an inner loop the first round. Not: what stands under a condition that stays open or in an arm not chosen, locals, which
// each thread has for itself, nor elements whose index another iteration may see otherwise. `loop` is of `module`, whose pool grows.
std::vector<Touched> TraceIteration(ir::Module& module, const ir::For& loop, std::span<const int64_t> iteration);

}  // namespace kiln::compiler
