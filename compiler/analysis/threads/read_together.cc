// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/read_together.h"

#include "compiler/analysis/access.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {

std::set<ir::BufferId> ReadTogether(const ir::Module& module, const ir::Block& block) {
  std::set<ir::BufferId> fragments;
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const bool parallel = loop != nullptr && loop->kind == ir::LoopKind::kParallel;
    for (const Access& access : AccessesOf(module, stmt)) {
      if (module[access.buffer].space == ir::Space::kFragment && !access.write && (parallel || access.tile)) fragments.insert(access.buffer);
    }
  });
  return fragments;
}

}  // namespace kiln::compiler
