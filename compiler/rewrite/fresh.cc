// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/fresh.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kiln::compiler {

ir::BufferId FreshBuffer(ir::Module& module, ir::Buffer buffer, std::string_view stem) {
  buffer.name = std::string(stem) + std::to_string(module.buffers.size());
  return module.AddBuffer(std::move(buffer));
}

ir::BufferId FreshLike(ir::Module& module, ir::BufferId of, ir::Space space, std::string_view suffix) {
  return FreshBuffer(module, {space, module[of].dtype, module[of].shape}, module[of].name + std::string(suffix));
}

ir::BufferId FreshCopy(ir::Module& module, ir::BufferId of, std::string_view suffix) {
  return FreshBuffer(module, module[of], module[of].name + std::string(suffix));
}

ir::BufferId FreshOfShape(ir::Module& module, ir::BufferId of, ir::Space space, std::span<const int64_t> shape, std::string_view suffix) {
  return FreshBuffer(module, {space, module[of].dtype, ShapeOfConstants(module, shape)}, module[of].name + std::string(suffix));
}

bool HasRoomForViews(const ir::Module& module) {
  constexpr int64_t kMost = 128;
  return std::ranges::count_if(module.buffers, [](const ir::Buffer& buffer) { return buffer.view.has_value(); }) < kMost;
}

ir::VarId FreshVar(ir::Module& module, ir::VarKind kind, ir::DType type, std::string_view stem, uint8_t axis) {
  return module.AddVar({kind, type, axis, std::string(stem) + std::to_string(module.vars.size())});
}

std::vector<ir::ExprId> ShapeOfConstants(ir::Module& module, std::span<const int64_t> extents) {
  std::vector<ir::ExprId> shape;
  for (int64_t extent : extents) shape.push_back(module.exprs.Int(extent));
  return shape;
}

}  // namespace kiln::compiler
