// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops in parts.
#pragma once

#include <cstdint>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Whether the statement is a parallel loop whose iteration i, j, … computes element [i, j, …] of the tile and nothing else, of the tile from that
// element alone. Parts of such a loop may run at different times.
bool ComputesInPlace(const ir::Module& module, const ir::Stmt& stmt, ir::BufferId tile);

// The iterations from `first` to one before `first` + `extent` of the loop's variable `dim`.
ir::Stmt PartOfLoop(ir::Module& module, const ir::Stmt& loop, size_t dim, int64_t first, int64_t extent);

}  // namespace kiln::compiler
