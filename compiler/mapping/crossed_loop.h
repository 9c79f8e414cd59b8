// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops whose memory accesses are contiguous in different variables, as a transpose's are.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/facts.h"
#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Reorders the loop's variables so that its stores are contiguous in the last one. Iterations have no order, so nothing else changes.
void PutStoresLast(const ir::Module& module, const Facts& facts, ir::Stmt& loop, int64_t alignment);

// Gives each thread a block of iterations. In the last variable the block is as wide as the accesses that are contiguous there; in another
// variable it is as long as those that are contiguous in that one. Every access then takes whole vectors, and the thread transposes them in
// registers. The lanes of a warp read whole lines of memory. Returns nullopt where the loop has no such accesses, or where blocks do not
// divide it.
std::optional<ir::Layout> CrossedLayout(const ir::Module& module, const Facts& facts, const ir::Stmt& loop, int64_t threads, const Context& context);

// Layouts of a tile with blocks of registers and of lanes along its last dimension and along `dim`, without copies or padding.
std::vector<ir::Layout> OrdersAlong(const std::vector<int64_t>& shape, int dim, int64_t threads, const Context& context);

// Reorders the variables of loops that have a layout, and the registers of their iterations, so that accesses to global memory are contiguous
// in the last variable.
void PutRunsLast(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
