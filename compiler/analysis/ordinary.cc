// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/ordinary.h"

#include <algorithm>
#include <set>

#include "compiler/analysis/contains.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// Larger sizes of tensors are not ordinary: a loop over them keeps its masks.
constexpr int64_t kOrdinary = int64_t{1} << 28;

}  // namespace

ir::ExprId AssumeOrdinary(ir::Module& module, const ir::Kernel& kernel, Facts& facts) {
  std::set<ir::VarId> sizes;
  const auto find = [&](ir::ExprId id) {
    (void)Contains(module.exprs, id, [&](ir::ExprId part) {
      const ir::ExprNode& node = module.exprs[part];
      if (node.op == ir::ExprOp::kVar && module[ir::VarId(node.ref)].kind == ir::VarKind::kSymbol) sizes.insert(ir::VarId(node.ref));
      return false;
    });
  };
  std::ranges::for_each(kernel.grid, find);
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) { ir::ForEachExpr(stmt.op, find); });
  ir::ExprId ordinary = module.exprs.Bool(true);
  for (const ir::VarId size : sizes) {
    const ir::ExprId is_ordinary = module.exprs.Make(ir::ExprOp::kLe, {module.VarRef(size), module.exprs.Int(kOrdinary, module[size].dtype)});
    facts.Assume(is_ordinary);
    ordinary = module.exprs.Make(ir::ExprOp::kAnd, {ordinary, is_ordinary});
  }
  return ordinary;
}

ir::ExprId Written(ir::Module& module, const Linear& sum) {
  ir::ExprId value = module.exprs.Int(sum.constant);
  for (const auto& [term, coefficient] : sum.terms)
    value = module.exprs.Add(value, module.exprs.Mul(module.exprs.Cast(ir::DType::kI32, ir::ExprId(term)), module.exprs.Int(coefficient)));
  return value;
}

}  // namespace kiln::compiler
