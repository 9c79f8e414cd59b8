// SPDX-License-Identifier: Apache-2.0
//
// Whether an expression has a part of some kind; shared parts are looked at once.
#pragma once

#include <unordered_set>
#include <vector>

#include "ir/module.h"

namespace kiln::compiler {

template <typename Wanted>
bool Contains(const ir::ExprPool& pool, ir::ExprId id, const Wanted& wanted) {
  std::vector<ir::ExprId> open{id};
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const ir::ExprId next = open.back();
    open.pop_back();
    if (wanted(next)) return true;
    if (!seen.insert(ir::Index(next)).second) continue;
    for (ir::ExprId arg : pool[next].Args()) open.push_back(arg);
  }
  return false;
}

// Whether it has a variable of `vars`.
template <typename Vars>
bool ContainsVar(const ir::ExprPool& pool, ir::ExprId id, const Vars& vars) {
  return Contains(pool, id, [&](ir::ExprId part) { return pool[part].op == ir::ExprOp::kVar && vars.contains(ir::VarId(pool[part].ref)); });
}

}  // namespace kiln::compiler
