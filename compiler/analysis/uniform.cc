// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/uniform.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "compiler/analysis/contains.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

// Larger sizes of tensors are not ordinary: a loop over them keeps its masks.
constexpr int64_t kOrdinary = int64_t{1} << 28;

bool IsWithin(Range range) { return range.min >= INT32_MIN && range.max <= INT32_MAX; }

// Whether the arithmetic that LinearOf looks through stays within its type.
bool NeverWraps(const ir::ExprPool& pool, const Facts& facts, ExprId id) {
  const ir::ExprNode& node = pool[id];
  const bool linear = node.op == ExprOp::kAdd || node.op == ExprOp::kSub || node.op == ExprOp::kMul;
  if (!linear && node.op != ExprOp::kCast) return true;
  // What may wrap has the range of its whole type. Of a narrow type, that looks like any other range.
  const Range range = facts.RangeOf(id);
  if (linear && (ir::Bits(node.dtype) < 32 || range.min <= INT32_MIN || range.max >= INT32_MAX)) return false;
  return std::ranges::all_of(node.Args(), [&](ExprId arg) { return NeverWraps(pool, facts, arg); });
}

// a ≥ b as a − b ≥ 0; nullopt for other operations.
std::optional<Linear> AtLeastZero(const ir::ExprPool& pool, const Facts& facts, const ir::ExprNode& node) {
  if (node.arg_count != 2 || !ir::IsInteger(pool.Type(node.args[0]))) return std::nullopt;
  const bool less = node.op == ExprOp::kLt || node.op == ExprOp::kLe, strict = node.op == ExprOp::kLt || node.op == ExprOp::kGt;
  if (!less && !strict && node.op != ExprOp::kGe) return std::nullopt;
  if (!NeverWraps(pool, facts, node.args[0]) || !NeverWraps(pool, facts, node.args[1])) return std::nullopt;
  Linear sum = LinearOf(pool, node.args[less ? 1 : 0]);
  sum.Add(LinearOf(pool, node.args[less ? 0 : 1]), -1);
  if (strict) sum.constant -= 1;
  return sum;
}

}  // namespace

std::optional<std::vector<Linear>> SumsOf(const ir::Module& module, const Facts& facts, ExprId cond) {
  const ir::ExprNode& node = module.exprs[cond];
  if (node.op == ExprOp::kAnd) {
    auto first = SumsOf(module, facts, node.args[0]);
    const auto second = first ? SumsOf(module, facts, node.args[1]) : std::nullopt;
    if (!second) return std::nullopt;
    first->insert(first->end(), second->begin(), second->end());
    return first;
  }
  std::optional<Linear> sum = AtLeastZero(module.exprs, facts, node);
  return sum ? std::optional(std::vector{*std::move(sum)}) : std::nullopt;
}

std::optional<std::vector<Linear>> HoldsEverywhere(const ir::Module& module, const Facts& facts, ExprId cond, const ir::For& loop) {
  const ir::ExprPool& pool = module.exprs;
  std::optional<std::vector<Linear>> sums = SumsOf(module, facts, cond);
  if (!sums) return std::nullopt;
  const std::set<ir::VarId> own(loop.vars.begin(), loop.vars.end());
  for (Linear& sum : *sums) {
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      const std::optional<int64_t> extent = pool.ConstInt(loop.extents[v]);
      if (!extent || *extent <= 0) return std::nullopt;
      std::erase_if(sum.terms, [&](const auto& term) {
        const ir::ExprNode& factor = pool[ExprId(term.first)];
        if (factor.op != ExprOp::kVar || ir::VarId(factor.ref) != loop.vars[v]) return false;
        sum.constant += std::min<int64_t>(0, term.second) * (*extent - 1);
        return true;
      });
    }
    for (const auto& [term, coefficient] : sum.terms)
      if (ContainsVar(pool, ExprId(term), own) || !ir::LoadsOf(pool, ExprId(term)).empty()) return std::nullopt;
    if (!IsWithin(RangeOf(facts, sum))) return std::nullopt;
  }
  return sums;
}

std::optional<bool> Decided(const ir::Module& module, const Facts& facts, ExprId cond) {
  if (const std::optional<int64_t> constant = module.exprs.ConstInt(cond)) return *constant != 0;
  const std::optional<Linear> sum = AtLeastZero(module.exprs, facts, module.exprs[cond]);
  if (!sum) return std::nullopt;
  const Range range = RangeOf(facts, *sum);
  if (range.min >= 0) return true;
  return range.max < 0 ? std::optional(false) : std::nullopt;
}

Range RangeOf(const Facts& facts, const Linear& sum) {
  Range range{sum.constant, sum.constant};
  for (const auto& [term, coefficient] : sum.terms) {
    const Range values = facts.RangeOf(ExprId(term));
    if (values.min <= -kUnbounded || values.max >= kUnbounded) return {-kUnbounded, kUnbounded};
    range.min += coefficient * (coefficient > 0 ? values.min : values.max);
    range.max += coefficient * (coefficient > 0 ? values.max : values.min);
  }
  return range;
}

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
