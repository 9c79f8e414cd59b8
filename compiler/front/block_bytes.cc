// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/block_bytes.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "ir/visit.h"

namespace kiln::compiler {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

namespace {

// Adds factor · most to `sum`; false, and adds nothing, where it is too much to count.
bool Grows(int64_t& sum, int64_t factor, int64_t most) {
  int64_t product = 0, grown = 0;
  if (__builtin_mul_overflow(factor, most, &product) || __builtin_add_overflow(sum, product, &grown) || grown >= kUnbounded) return false;
  sum = grown;
  return true;
}

}  // namespace

BlockBytes::BlockBytes(const ir::Module& module, const ir::Kernel& kernel) : module_(module) {
  for (size_t d = 0; d < kernel.block_vars.size(); ++d) {
    if (module.exprs.IsConst(kernel.grid[d], 1)) continue;
    of_block_.insert(ir::Index(kernel.block_vars[d]));
    grid_[ir::Index(kernel.block_vars[d])] = module.exprs.ConstInt(kernel.grid[d]).value_or(kUnbounded);
  }
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* let = std::get_if<ir::Let>(&stmt.op);
    if (let != nullptr && Mentions(let->value, of_block_)) of_block_.insert(ir::Index(let->var));
  });
}

bool BlockBytes::ShareBytes(const ir::Store& store, const Facts& facts) const {
  std::set<uint32_t> apart = of_block_;  // variables that may differ between blocks that store to one row
  for (size_t d = 0; d + 1 < store.indices.size(); ++d)
    for (const uint32_t var : ToldBy(store.indices[d], facts)) apart.erase(var);
  return !AddMultiples(store.indices.back(), apart, 2, facts);
}

std::set<uint32_t> BlockBytes::ToldBy(ExprId index, const Facts& facts) const {
  std::vector<std::pair<int64_t, uint32_t>> by_factor;
  int64_t moved = 0;
  for (const auto& [term, factor] : LinearOf(module_.exprs, index).terms) {
    const ExprNode& node = module_.exprs[ExprId(term)];
    const Range range = facts.RangeOf(ExprId(term));
    if (node.op == ExprOp::kVar && grid_.contains(node.ref)) {
      by_factor.emplace_back(std::abs(factor), node.ref);
    } else if (range.min <= -kUnbounded || range.max >= kUnbounded || !Grows(moved, std::abs(factor), range.max - range.min)) {
      return {};
    }
  }
  std::ranges::sort(by_factor);
  std::set<uint32_t> told;
  for (const auto& [factor, var] : by_factor) {
    if (factor <= moved) return {};
    told.insert(var);
    if (!Grows(moved, factor, grid_.at(var) - 1) && told.size() < by_factor.size()) return {};
  }
  return told;
}

bool BlockBytes::AddMultiples(ExprId id, const std::set<uint32_t>& vars, int64_t step, const Facts& facts) const {
  return std::ranges::all_of(LinearOf(module_.exprs, id).terms, [&](const auto& term) {
    const auto part = ExprId(term.first);
    const ExprNode& node = module_.exprs[part];
    const int64_t own = step / std::gcd(step, term.second);
    if (!Mentions(part, vars) || facts.DivisorOf(part) % own == 0) return true;
    const int64_t by = node.arg_count == 2 ? module_.exprs.ConstInt(node.args[1]).value_or(0) : 0;
    if (node.op == ExprOp::kFloorMod) return by > 0 && by % own == 0 && AddMultiples(node.args[0], vars, own, facts);
    return node.op == ExprOp::kFloorDiv && by > 0 && by <= kUnbounded / own && AddMultiples(node.args[0], vars, by * own, facts);
  });
}

bool BlockBytes::Mentions(ExprId id, const std::set<uint32_t>& vars) const {
  const ExprNode& node = module_.exprs[id];
  if (node.op == ExprOp::kVar && vars.contains(node.ref)) return true;
  return std::ranges::any_of(node.Args(), [&](ExprId arg) { return Mentions(arg, vars); });
}

}  // namespace kiln::compiler
