// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops whose memory accesses are contiguous in different variables, as a transpose's are.
#pragma once

#include <optional>

#include "compiler/analysis/facts.h"
#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Makes the variable that the loop's stores are contiguous in its last one. Iterations have no order, so nothing else changes.
void PutStoresLast(const ir::Module& module, const Facts& facts, ir::Stmt& loop, int64_t alignment);

// A block of registers for each thread, as wide in the last variable as the accesses contiguous in it and as long in another as those
// contiguous there: each access takes whole vectors, and the transpose is one of registers. Lanes of a warp read 128 bytes of neighbours.
// Nothing where there is no such access, or where blocks do not divide the loop.
std::optional<ir::Layout> CrossedLayout(const ir::Module& module, const Facts& facts, const ir::Stmt& loop, int64_t threads,
                                        const Context& context);

}  // namespace kiln::compiler
