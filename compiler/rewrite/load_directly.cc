// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/load_directly.h"

#include <algorithm>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/rewrite/versions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// The dimensions along which a region has several elements.
std::vector<size_t> Moving(const ir::Region& region) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < region.extents.size(); ++d)
    if (region.extents[d] != 1) dims.push_back(d);
  return dims;
}

}  // namespace

bool MayLoadDirectly(const ir::Module& module, const ir::Block& block, const ir::Copy& copy) {
  if (module[copy.src.buffer].dtype != module[copy.dst.buffer].dtype || Moving(copy.src).size() != Moving(copy.dst).size()) return false;
  bool may = true;
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const bool of_elements = std::holds_alternative<ir::Store>(stmt.op) || (loop != nullptr && loop->kind == ir::LoopKind::kParallel);
    for (const Access& access : AccessesOf(module, stmt)) may &= access.buffer != copy.dst.buffer || (of_elements && !access.tile && !access.write);
  });
  return may;
}

void LoadDirectly(ir::Module& module, ir::Block& block, const ir::Copy& copy) {
  const ir::BufferId tile = copy.dst.buffer, tensor = copy.src.buffer;
  const std::vector<size_t> from = Moving(copy.src), to = Moving(copy.dst);
  const auto load = [&](const ir::ExprNode& node) {
    std::vector<ir::ExprId> indices = copy.src.offsets;
    const std::vector<ir::ExprId> at(node.Args().begin(), node.Args().end());
    for (size_t i = 0; i < from.size(); ++i) {
      ir::ExprId& index = indices[from[i]];
      index = module.exprs.Add(index, module.exprs.Cast(module.exprs.Type(index), at[to[i]]));
    }
    return module.exprs.Load(tensor, module[tensor].dtype, indices);
  };
  ir::Walk(block, [&](ir::Stmt& stmt) { RewriteLoads(module, stmt, tile, load); });
}

}  // namespace kiln::compiler
