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

// How a statement reads global memory.
struct Reading {
  double fresh = 1;    // part of the bytes, of all that the blocks read at one time, that no other of them reads: 1 / blocks if all read the same
  bool again = false;  // a statement before it has read the same
};
// Of `blocks` neighbouring blocks. Where a loop begins elsewhere in each of them (that of a causal mask), they read the same at different times: what
// one has read another finds, if all of them have read at most `kept` bytes since.
std::map<const ir::Stmt*, Reading> ReadingsOf(const ir::Module& module, const ir::Kernel& kernel, const Scalars& scalars, int64_t blocks,
                                              double kept);

}  // namespace kiln::compiler
