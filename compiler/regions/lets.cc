// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/lets.h"

#include <optional>

#include "compiler/analysis/contains.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

constexpr uint64_t kLongest = 1024;  // counted as a tree: below what readers of a module take

}  // namespace

Lets::Lets(ir::Module& module, const ir::Kernel& kernel) : module_(module), sizes_(module.exprs) {
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* let = std::get_if<ir::Let>(&stmt.op);
    if (let == nullptr || !ir::IsInteger(module_[let->var].dtype)) return;
    const auto loads = [&](ir::ExprId part) { return module_.exprs[part].op == ir::ExprOp::kLoad; };
    if (!Contains(module_.exprs, let->value, loads)) values_.emplace(let->var, Expanded(let->value));
  });
}

ir::ExprId Lets::Expanded(ir::ExprId id) const {
  if (values_.empty()) return id;
  const ir::ExprId expanded = module_.exprs.Rewrite(id, [&](ir::ExprId leaf) -> std::optional<ir::ExprId> {
    const ir::ExprNode& node = module_.exprs[leaf];
    const auto value = node.op == ir::ExprOp::kVar ? values_.find(ir::VarId(node.ref)) : values_.end();
    return value == values_.end() ? std::nullopt : std::optional(value->second);
  });
  return sizes_.Of(expanded).nodes > kLongest ? id : expanded;
}

}  // namespace kiln::compiler
