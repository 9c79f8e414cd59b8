// SPDX-License-Identifier: Apache-2.0
#include "ir/module.h"

#include <type_traits>

namespace kiln::ir {
namespace {

constexpr std::string_view kNames[] = {
#define KILN_OP(number, type, name, family, since) name,
#include "ir/ops.def"
};

enum Row : size_t {
#define KILN_OP(number, type, name, family, since) kRow##type,
#include "ir/ops.def"
};
#define KILN_OP(number, type, name, family, since) \
  static_assert(std::is_same_v<std::variant_alternative_t<kRow##type, Op>, type>, "Op follows the order of ops.def");
#include "ir/ops.def"
static_assert(std::variant_size_v<Op> == std::size(kNames));

}  // namespace

std::string_view Name(const Op& op) { return kNames[op.index()]; }

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

uint32_t Kernel::ClusterBlocks() const {
  uint32_t blocks = 1;
  for (uint32_t size : cluster) blocks *= size;
  return blocks;
}

std::vector<int64_t> Module::ShapeOf(BufferId id) const { return ConstShape(id).value(); }

}  // namespace kiln::ir
