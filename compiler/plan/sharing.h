// SPDX-License-Identifier: Apache-2.0
//
// Which blocks that run at one time read the same: what one of them brings from memory, the others find in the L2.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "compiler/plan/scalars.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Extents of the grid; unknown ones are 1 here.
std::vector<int64_t> GridOf(const ir::Kernel& kernel, const Scalars& scalars);
// Gives the kernel's block variables the values of the block of that number, x first.
void EnterBlock(const ir::Kernel& kernel, std::span<const int64_t> grid, int64_t number, Scalars& scalars);

// For each statement that reads global memory the part of its bytes, of all that `blocks` neighbouring blocks read at one time, that no other of
// them reads: 1 if each reads its own, 1 / blocks if all read the same.
std::map<const ir::Stmt*, double> FreshParts(const ir::Module& module, const ir::Kernel& kernel, const Scalars& scalars, int64_t blocks);

}  // namespace kiln::compiler
