// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/repeat.h"

#include <map>

#include "ir/visit.h"

namespace kiln::compiler {
namespace {

struct Binder : ir::FieldVisitor {
  ir::Module& module;
  std::map<uint32_t, ir::ExprId> renamed;
  explicit Binder(ir::Module& m) : module(m) {}
  void Binds(ir::VarId& var, std::string_view) {
    const ir::VarId fresh = module.AddVar(ir::Var(module[var]));
    renamed[ir::Index(var)] = module.VarRef(fresh);
    var = fresh;
  }
};

}  // namespace

ir::Block Repeated(ir::Module& module, const ir::Block& block) {
  ir::Block copy = block;
  Binder binder(module);
  ir::Walk(copy, [&](ir::Stmt& stmt) { ir::Fields(stmt.op, binder); });
  if (binder.renamed.empty()) return copy;
  ir::Walk(copy, [&](ir::Stmt& stmt) {
    ir::ForEachExpr(stmt.op, [&](ir::ExprId& id) {
      id = module.exprs.Rewrite(id, [&](ir::ExprId leaf) -> std::optional<ir::ExprId> {
        const ir::ExprNode& node = module.exprs[leaf];
        const auto it = node.op == ir::ExprOp::kVar ? binder.renamed.find(node.ref) : binder.renamed.end();
        return it == binder.renamed.end() ? std::nullopt : std::optional(it->second);
      });
    });
  });
  return copy;
}

}  // namespace kiln::compiler
