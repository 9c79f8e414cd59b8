// SPDX-License-Identifier: Apache-2.0
//
// Which statements end an iteration of the loop around them, or the loop, before its last statement.
#pragma once

#include <algorithm>
#include <span>

#include "ir/op.h"

namespace kiln::compiler {

// Whether one of `Exits` stands in the body of a loop, under conditions or not. Those of loops inside leave only the loops inside.
template <typename... Exits>
bool HoldsExit(std::span<const ir::Stmt> body) {
  return std::ranges::any_of(body, [](const ir::Stmt& stmt) {
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) return HoldsExit<Exits...>(branch->then_body) || HoldsExit<Exits...>(branch->else_body);
    return (std::holds_alternative<Exits>(stmt.op) || ...);
  });
}

inline bool LeavesLoop(const ir::Block& body) { return HoldsExit<ir::Break, ir::Continue>(body); }

}  // namespace kiln::compiler
