// SPDX-License-Identifier: Apache-2.0
//
// Which loops are unrolled, before LLVM sees any of them.
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// More iterations than these never are unrolled; of a single statement, as where a thread fills an array of its own, which then may lie in
// registers.
constexpr int64_t kMaxUnrolledIterations = 64, kMaxUnrolledOfOne = 256;

// Whether a loop is written out: an unrolled one of few iterations which together have no more than `limit` statements.
bool IsWrittenOut(const ir::Module& module, const ir::For& loop, int64_t limit);

}  // namespace kiln::compiler
