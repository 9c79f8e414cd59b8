// SPDX-License-Identifier: Apache-2.0
//
// How many elements of global or shared memory an access of a parallel loop takes at once.
#pragma once

#include <span>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// `facts` hold at the loop's body. `alignment` is that of global buffers in bytes. What the loop stores is never kAcross or kGathered.
ir::LoadPlan VectorsOf(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, ir::BufferId buffer, std::span<const ir::ExprId> indices,
                       int64_t alignment);

// The same of a read with a mask: one access takes elements only if the mask has one value for all of them.
ir::LoadPlan MaskedVectorsOf(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, const ir::Read& read, int64_t alignment);

// Whether the expression has a select, "and" or "or" that may skip a load in it, or a mask that may skip one in an index.
bool SelectsLoads(const ir::ExprPool& pool, ir::ExprId id);

}  // namespace kiln::compiler
