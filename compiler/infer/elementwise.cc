// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/elementwise.h"

#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;

std::vector<int64_t> Looped(const std::vector<int64_t>& extents) {
  std::vector<int64_t> looped;
  for (int64_t extent : extents)
    if (extent != 1) looped.push_back(extent);
  if (looped.empty()) looped.push_back(1);
  return looped;
}

std::vector<ExprId> IndicesOf(ir::Module& module, const ir::Region& region, const std::vector<ExprId>& variables) {
  std::vector<ExprId> indices;
  size_t next = 0;
  for (size_t d = 0; d < region.extents.size(); ++d) {
    ExprId index = region.offsets[d];
    if (region.extents[d] != 1) {
      const ExprId variable = module.exprs.Cast(module.exprs.Type(index), variables[next++]);
      index = module.exprs.Add(index, variable);
    }
    indices.push_back(index);
  }
  return indices;
}

}  // namespace

ElementLoop MakeElementLoop(ir::Module& module, std::span<const int64_t> extents, std::string_view name) {
  ElementLoop result;
  result.loop.kind = ir::LoopKind::kParallel;
  for (size_t i = 0; i < extents.size(); ++i) {
    const std::string unique = std::string(name) + std::to_string(module.vars.size());
    const ir::VarId var = module.AddVar({ir::VarKind::kLoop, ir::DType::kI32, 0, unique});
    result.loop.vars.push_back(var);
    result.loop.extents.push_back(module.exprs.Int(extents[i]));
    result.indices.push_back(module.VarRef(var));
  }
  return result;
}

ir::For CopyLoop(ir::Module& module, const ir::Copy& copy) {
  ElementLoop element = MakeElementLoop(module, Looped(copy.dst.extents), "e");
  const ir::Buffer& src = module[copy.src.buffer];
  const ir::Buffer& dst = module[copy.dst.buffer];
  const std::vector<ExprId> from = IndicesOf(module, copy.src, element.indices);
  const ExprId value = module.exprs.Cast(dst.dtype, module.exprs.Load(copy.src.buffer, src.dtype, from));
  element.loop.coalesced_width = copy.coalesced_width;
  element.loop.body.push_back({ir::Store{copy.dst.buffer, IndicesOf(module, copy.dst, element.indices), value}, {}});
  return std::move(element.loop);
}

ir::For FillLoop(ir::Module& module, const ir::Fill& fill) {
  ElementLoop element = MakeElementLoop(module, Looped(fill.dst.extents), "e");
  const ExprId value = module.exprs.Cast(module[fill.dst.buffer].dtype, fill.value);
  element.loop.body.push_back({ir::Store{fill.dst.buffer, IndicesOf(module, fill.dst, element.indices), value}, {}});
  return std::move(element.loop);
}

}  // namespace kiln::compiler
