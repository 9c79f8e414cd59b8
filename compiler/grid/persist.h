// SPDX-License-Identifier: Apache-2.0
//
// Persistent blocks. A kernel whose rings are filled by threads of their own runs as many blocks as the device has multiprocessors; each
// goes over tiles of the grid, so that the next tile's loads run during this tile's epilogue. Tiles are taken panel by panel, rows first:
// those that run at one time share operands in L2. Where tiles become longer or shorter along one axis of the grid, the longest come first, and the
// blocks take them there and back. Where they differ otherwise, the blocks change places in each turn.
//
//   grid(X, Y), (x, y)   →   grid(min(X·Y, multiprocessors)), b:   for t { n = b + t · blocks; x, y = place of n; … }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Does nothing where one wave holds the grid, or where several blocks may share a multiprocessor.
bool MayPersist(const ir::Module& module, const ir::Kernel& kernel, const Context& context);

// Needs: rings, and Multicast before it. Two blocks that load for each other go over pairs of tiles together.
void Persist(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
