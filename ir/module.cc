// SPDX-License-Identifier: Apache-2.0
#include "ir/module.h"

#include "ir/op.h"

namespace kiln::ir {
VarId Module::AddVar(Var var) {
  vars.push_back(std::move(var));
  return VarId(vars.size() - 1);
}

BufferId Module::AddBuffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return BufferId(buffers.size() - 1);
}

std::optional<std::vector<int64_t>> Module::ConstShape(BufferId id) const {
  std::vector<int64_t> shape;
  for (ExprId extent : (*this)[id].shape) {
    std::optional<int64_t> value = exprs.ConstInt(extent);
    if (!value) return std::nullopt;
    shape.push_back(*value);
  }
  return shape;
}

Kernel::Kernel() = default;
Kernel::Kernel(const Kernel&) = default;
Kernel::Kernel(Kernel&&) noexcept = default;
Kernel& Kernel::operator=(const Kernel&) = default;
Kernel& Kernel::operator=(Kernel&&) noexcept = default;
Kernel::~Kernel() = default;

uint32_t Kernel::ClusterBlocks() const {
  uint32_t blocks = 1;
  for (uint32_t size : cluster) blocks *= size;
  return blocks;
}

std::vector<int64_t> Module::ShapeOf(BufferId id) const { return ConstShape(id).value(); }

}  // namespace kiln::ir
