// SPDX-License-Identifier: Apache-2.0
//
// How much code statements become: what is decided before LLVM sees any of it.
#pragma once

#include "ir/module.h"

namespace kiln::compiler {

// More iterations than these never are unrolled.
constexpr int64_t kMaxUnrolledIterations = 64;

// Statements of a block as each thread runs them, where loops over registers, and unrolled ones within `limit`, are written out. Parallel loops
// have their layouts.
int64_t WrittenOut(const ir::Module& module, const ir::Block& block, int64_t limit);

// Whether a loop is written out: an unrolled one of few iterations which together have no more than `limit` statements.
bool IsWrittenOut(const ir::Module& module, const ir::For& loop, int64_t limit);

}  // namespace kiln::compiler
