// SPDX-License-Identifier: Apache-2.0
//
// Barriers of all blocks (ir::Barrier::grid): in a kernel that has some, what one block writes before it another may read after it, and all blocks
// run at one time.
#pragma once

#include <variant>

#include "ir/module.h"
#include "ir/visit.h"

namespace kiln::compiler {

inline bool IsGridBarrier(const ir::Stmt& stmt) {
  const auto* barrier = std::get_if<ir::Barrier>(&stmt.op);
  return barrier != nullptr && barrier->grid;
}

inline bool HasGridBarrier(const ir::Block& block) {
  bool has = false;
  ir::Walk(block, [&](const ir::Stmt& stmt) { has |= IsGridBarrier(stmt); });
  return has;
}
inline bool HasGridBarrier(const ir::Kernel& kernel) { return HasGridBarrier(kernel.body); }

}  // namespace kiln::compiler
