// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/elementwise.h"

#include <algorithm>

#include "compiler/rewrite/fresh.h"
#include "ir/op.h"
#include "ir/visit.h"

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
    const ir::VarId var = FreshVar(module, ir::VarKind::kLoop, ir::DType::kI32, name);
    result.loop.vars.push_back(var);
    result.loop.extents.push_back(module.exprs.Int(extents[i]));
    result.indices.push_back(module.VarRef(var));
  }
  return result;
}

bool NamesPrivate(const ir::Module& module, const ir::Op& op) {
  bool names = false;
  ir::ForEachBuffer(op, [&](ir::BufferId buffer) { names |= module[buffer].space == ir::Space::kLocal; });
  return names;
}

void MakePrivate(const ir::Module& module, ir::For& loop, const ir::Op& op, int64_t registers) {
  int64_t bits = 0;
  ir::ForEachBuffer(op, [&](ir::BufferId buffer) {
    if (module[buffer].space == ir::Space::kLocal) bits = std::max<int64_t>(bits, ir::Bits(module[buffer].dtype));
  });
  for (ExprId extent : loop.extents) bits *= module.exprs.ConstInt(extent).value_or(1);
  const ir::LoopKind kind = bits <= registers * 32 ? ir::LoopKind::kUnroll : ir::LoopKind::kSerial;
  ir::Block body = std::move(loop.body);
  for (size_t v = loop.vars.size(); v-- > 1;) {
    ir::For inner{kind, {loop.vars[v]}, {loop.extents[v]}, std::move(body)};
    body.clear();
    body.push_back({std::move(inner), {}});
  }
  loop.kind = kind;
  loop.coalesced_width = 0;  // of neighbouring threads
  loop.vars.resize(1);
  loop.extents.resize(1);
  loop.body = std::move(body);
}

ir::For ElementwiseLoop(ir::Module& module, const ir::Region& dst, const std::function<ExprId(const ir::ElementOf&)>& value) {
  ElementLoop element = MakeElementLoop(module, Looped(dst.extents), "e");
  const ir::ElementOf load = [&](const ir::Region& region) {
    return module.exprs.Load(region.buffer, module[region.buffer].dtype, IndicesOf(module, region, element.indices));
  };
  const ExprId stored = module.exprs.Cast(module[dst.buffer].dtype, value(load));
  element.loop.body.push_back({ir::Store{dst.buffer, IndicesOf(module, dst, element.indices), stored}, {}});
  return std::move(element.loop);
}

ir::For CopyLoop(ir::Module& module, const ir::Copy& copy) {
  ir::For loop = ElementwiseLoop(module, copy.dst, [&](const ir::ElementOf& element) { return element(copy.src); });
  loop.coalesced_width = copy.coalesced_width;
  return loop;
}

}  // namespace kiln::compiler
