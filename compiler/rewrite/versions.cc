// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/versions.h"

#include "ir/visit.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace kiln::compiler {

int64_t VersionBytes(const ir::Module& module, ir::BufferId buffer) {
  const int64_t bytes = (module[buffer].layout->Addresses() * ir::Bits(module[buffer].dtype) + 7) / 8;
  return (bytes + kVersionAlignment - 1) / kVersionAlignment * kVersionAlignment;
}

void AddVersions(ir::Module& module, ir::BufferId id, int64_t versions) {
  const int64_t stride = VersionBytes(module, id) * 8 / ir::Bits(module[id].dtype);
  ir::Buffer& buffer = module[id];
  buffer.shape.insert(buffer.shape.begin(), module.exprs.Int(versions));
  buffer.versions = uint32_t(versions);
  buffer.layout = buffer.layout->WithOuterDim({versions, ir::Place::kAddress, stride});
}

void UseVersion(ir::Module& module, ir::Block& block, ir::BufferId buffer, ir::ExprId version) {
  const auto load = [&](const ir::ExprNode& node) {
    std::vector<ir::ExprId> indices{version};
    indices.insert(indices.end(), node.Args().begin(), node.Args().end());
    return module.exprs.Load(buffer, node.dtype, indices);
  };
  ir::Walk(block, [&](ir::Stmt& stmt) {
    RewriteLoads(module, stmt, buffer, load);
    ir::ForEachPlace(stmt.op, [&](ir::BufferId& place, std::vector<ir::ExprId>& indices, std::vector<int64_t>* extents) {
      if (place != buffer) return;
      indices.insert(indices.begin(), version);
      if (extents != nullptr) extents->insert(extents->begin(), 1);
    });
  });
}

void Declare(const ir::Module& module, ir::Kernel& kernel, size_t first) {
  ir::Block allocs;
  for (size_t id = first; id < module.buffers.size(); ++id) allocs.push_back({ir::Alloc{ir::BufferId(id)}, {}});
  kernel.body.insert(kernel.body.begin(), allocs.begin(), allocs.end());
}

void TakeAllocs(ir::Block& block, ir::Block& allocs) {
  const auto is_alloc = [](const ir::Stmt& stmt) { return std::holds_alternative<ir::Alloc>(stmt.op); };
  std::ranges::copy_if(block, std::back_inserter(allocs), is_alloc);
  std::erase_if(block, is_alloc);
  for (ir::Stmt& stmt : block) ir::ForEachBody(stmt.op, [&](ir::Block& body) { TakeAllocs(body, allocs); });
}

void TestInside(ir::Module& module, ir::While& loop, ir::SourceLoc loc) {
  const ir::ExprId leaves = module.exprs.Make(ir::ExprOp::kNot, {loop.cond});
  loop.body.insert(loop.body.begin(), {ir::If{leaves, {{ir::Break{}, loc}}, {}}, loc});
  loop.cond = module.exprs.Bool(true);
}

void Substitute(ir::Module& module, ir::Block& block, ir::VarId var, ir::ExprId value) {
  ir::Walk(block, [&](ir::Stmt& stmt) { ir::ForEachExpr(stmt.op, [&](ir::ExprId& id) { id = module.exprs.Substitute(id, var, value); }); });
}

void RewriteLoads(ir::Module& module, ir::Stmt& stmt, ir::BufferId buffer, const std::function<ir::ExprId(const ir::ExprNode&)>& make) {
  ir::ForEachExpr(stmt.op, [&](ir::ExprId& id) {
    id = module.exprs.Rewrite(id, [&](ir::ExprId leaf) -> std::optional<ir::ExprId> {
      const ir::ExprNode node = module.exprs[leaf];
      return node.op == ir::ExprOp::kLoad && ir::BufferId(node.ref) == buffer ? std::optional(make(node)) : std::nullopt;
    });
  });
}

void ReplaceBuffer(ir::Module& module, ir::Block& block, ir::BufferId from, ir::BufferId to) {
  ir::Walk(block, [&](ir::Stmt& stmt) { ReplaceBuffer(module, stmt, from, to); });
}

void ReplaceBuffer(ir::Module& module, ir::Stmt& stmt, ir::BufferId from, ir::BufferId to) {
  RewriteLoads(module, stmt, from, [&](const ir::ExprNode& node) { return module.exprs.Load(to, node.dtype, node.Args()); });
  ir::ForEachBuffer(stmt.op, [&](ir::BufferId& buffer) {
    if (buffer == from) buffer = to;
  });
}

}  // namespace kiln::compiler
