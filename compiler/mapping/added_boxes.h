// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops that add a tile to global memory, element by element: what a tensor copy can do at once.
#pragma once

#include <optional>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The atomic of a parallel loop that adds a tile, and orders nothing else; nullptr: it is no such loop.
const ir::Atomic* AddsTile(const ir::Stmt& stmt);

// The box of memory that the loop adds to, and its variables in the order of the box's dimensions.
struct AddedBox {
  ir::Region box;
  std::vector<ir::VarId> vars;
};
// Each variable of the loop must move along a dimension of its own, one element at a time; else nullopt.
std::optional<AddedBox> BoxOf(ir::Module& module, const ir::For& loop, const ir::Atomic& atomic);

// Whether the loop finds elements of fragments at its own variables, but for constants. Elsewhere it becomes a loop over the whole fragment
// (shift_loops.h), of which a shared tile of several panels holds a part.
bool TakesPartsFromKnownPlaces(const ir::Module& module, const ir::For& loop, ir::ExprId value);

// Whether an atomic of the kernel orders what its block did before.
bool OrdersMemory(const ir::Kernel& kernel);

}  // namespace kiln::compiler
