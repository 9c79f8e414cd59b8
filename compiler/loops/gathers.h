// SPDX-License-Identifier: Apache-2.0
//
// Rows gathered by an index. A parallel loop that only moves elements of a tensor to a tile in shared memory, each from where its own indices
// say, becomes an asynchronous copy of 4, 8 or 16 bytes at a time, whose zeros stand for what a mask leaves out:
//
//   parallel i, j: tile[i, j] = masked(0 ≤ rows[i], cache[rows[i], j], 0)   →   the same, async
//
// A tensor's box is a Copy and has no need of this; a loop may compute each row's place, as tables of pages and lists of the best keys do.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// What an asynchronous gather stores; nullptr: the statement is none.
const ir::Store* AsyncGather(const ir::Stmt& stmt);

bool IsAsync(const ir::Copy& copy);

// Closes the groups of the async copies that no pipeline moved. Adjacent copies to one buffer form a group. Synchronize waits for a group where
// its buffer is first used, while later groups are still under way.
void CloseGroups(ir::Block& block);

void Gathers(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
