// SPDX-License-Identifier: Apache-2.0
//
// Barriers of all blocks (ir::Barrier::grid): in a kernel that has some, what one block writes before it another may read after it, and all blocks
// run at one time. Barriers of a cluster's blocks, and what these do to each other's shared memory: the program orders it. A function of another
// language (ir::Call) may do any of that.
#pragma once

#include <variant>

#include "ir/module.h"
#include "ir/visit.h"

namespace kiln::compiler {

inline bool IsGridBarrier(const ir::Stmt& stmt) {
  const auto* barrier = std::get_if<ir::Barrier>(&stmt.op);
  return barrier != nullptr && barrier->grid;
}

// What a block does to another one's shared memory.
inline bool GoesToOtherBlocks(const ir::Stmt& stmt) {
  const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
  const auto* arrive = std::get_if<ir::Arrive>(&stmt.op);
  return (atomic != nullptr && atomic->block) || (arrive != nullptr && arrive->block);
}

inline bool IsClusterBarrier(const ir::Stmt& stmt) {
  const auto* barrier = std::get_if<ir::Barrier>(&stmt.op);
  return barrier != nullptr && barrier->cluster;
}

inline bool IsCall(const ir::Stmt& stmt) { return std::holds_alternative<ir::Call>(stmt.op); }

// Whether blocks of the grid or of a cluster wait for each other, or reach each other's memory, in the order of the program, or may do so.
inline bool OrdersBlocks(const ir::Block& block) {
  bool orders = false;
  ir::Walk(block, [&](const ir::Stmt& stmt) { orders |= IsGridBarrier(stmt) || IsClusterBarrier(stmt) || GoesToOtherBlocks(stmt) || IsCall(stmt); });
  return orders;
}
inline bool OrdersBlocks(const ir::Kernel& kernel) { return OrdersBlocks(kernel.body); }

}  // namespace kiln::compiler
