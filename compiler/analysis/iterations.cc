// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/iterations.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "compiler/analysis/facts.h"

namespace kiln::compiler {

std::optional<Version> VersionOf(const ir::Module& module, const Access& access, const std::set<ir::VarId>& loops) {
  const ir::Buffer& buffer = module[access.buffer];
  if (buffer.space != ir::Space::kShared || access.indices.empty()) return std::nullopt;
  if (access.tile && (access.extents.empty() || access.extents.front() != 1)) return std::nullopt;
  const std::optional<int64_t> modulus = module.exprs.ConstInt(buffer.shape.front());
  if (!modulus || *modulus < 2) return std::nullopt;
  const Linear index = LinearOf(module.exprs, access.indices.front());
  if (index.terms.empty()) return Version{std::nullopt, index.constant, *modulus};
  if (index.terms.size() != 1 || index.terms.begin()->second != 1 || index.constant != 0) return std::nullopt;
  const ir::ExprNode& node = module.exprs[ir::ExprId(index.terms.begin()->first)];
  if (node.op != ir::ExprOp::kFloorMod || module.exprs.ConstInt(node.args[1]) != modulus) return std::nullopt;
  const Linear inner = LinearOf(module.exprs, node.args[0]);
  if (inner.terms.size() != 1 || inner.terms.begin()->second != 1) return std::nullopt;
  const ir::ExprNode& term = module.exprs[ir::ExprId(inner.terms.begin()->first)];
  if (term.op != ir::ExprOp::kVar || !loops.contains(ir::VarId(term.ref))) return std::nullopt;
  return Version{ir::VarId(term.ref), inner.constant, *modulus};
}

bool MayMeetItself(const ir::Module& module, const ir::Stmt& stmt, const Access& access, const std::set<ir::VarId>& loops) {
  std::map<uint32_t, int64_t> own;  // the statement's own variables → extent
  if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
    for (size_t v = 0; v < loop->vars.size(); ++v) {
      own[ir::Index(loop->vars[v])] = module.exprs.ConstInt(loop->extents[v]).value_or(INT32_MAX);
    }
  }
  std::set<uint32_t> moving, apart;  // loop variables that occur, and those that keep their iterations apart
  for (ir::ExprId index : access.indices) {
    int64_t reach = 0, step = 0;
    std::optional<uint32_t> by;
    for (const auto& [term, coefficient] : LinearOf(module.exprs, index).terms) {
      const ir::ExprNode& node = module.exprs[ir::ExprId(term)];
      if (node.op != ir::ExprOp::kVar || module.vars[node.ref].kind == ir::VarKind::kLet) return true;
      if (const auto it = own.find(node.ref); it != own.end()) {
        reach += std::abs(coefficient) * (it->second - 1);
      } else if (loops.contains(ir::VarId(node.ref))) {
        moving.insert(node.ref);
        step = by ? 0 : std::abs(coefficient);
        by = node.ref;
      }
    }
    if (by && step > reach) apart.insert(*by);
  }
  return !std::ranges::includes(apart, moving);
}

}  // namespace kiln::compiler
