// SPDX-License-Identifier: Apache-2.0
//
// Loops over elements.
#pragma once

#include "ir/op.h"

namespace kiln::compiler {

// Whether the loop is one statement of the threads that come to it: its iterations have no order, and nothing stands between them. A vectorized
// loop is one from when it has a layout (analysis/threads/own_run.h).
inline bool IsOneStatement(const ir::For& loop) {
  return loop.kind == ir::LoopKind::kParallel || (loop.kind == ir::LoopKind::kVectorized && loop.layout);
}

}  // namespace kiln::compiler
