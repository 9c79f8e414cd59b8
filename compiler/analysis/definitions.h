// SPDX-License-Identifier: Apache-2.0
//
// Who defines a buffer's elements, who uses them, and with what they begin.
#pragma once

#include <map>
#include <set>
#include <span>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// How often statements access a buffer.
struct AccessCount {
  int64_t reads = 0, writes = 0;
  int64_t all() const { return reads + writes; }
};
using AccessCounts = std::map<ir::BufferId, AccessCount>;

// Of the block's statements and those within them, each by itself.
AccessCounts CountAllAccesses(const ir::Module& module, const ir::Block& block);

// Whether the loop is one statement of the threads that come to it: its iterations have no order, and nothing stands between them. A vectorized
// loop is one from when it has a layout (analysis/threads/own_run.h).
inline bool IsOneStatement(const ir::For& loop) {
  return loop.kind == ir::LoopKind::kParallel || (loop.kind == ir::LoopKind::kVectorized && loop.layout);
}

// Whether the indices are the loop's variables in order, so that an iteration uses its own element.
bool IsOwnElement(const ir::Module& module, const ir::For& loop, std::span<const ir::ExprId> indices);

// Whether the loop has an iteration for each element of the buffer, and no others.
bool CoversElements(const ir::Module& module, const ir::For& loop, ir::BufferId buffer);

// Variables that exist only within the loop.
std::set<ir::VarId> BoundIn(const ir::For& loop);

// The last of the statements `before` a place to touch the buffer, where it sets the whole buffer to zero, and no break or continue stands between it
// and the place; else nullptr.
const ir::Stmt* ZeroedBy(const ir::Module& module, std::span<const ir::Stmt> before, ir::BufferId buffer);

}  // namespace kiln::compiler
