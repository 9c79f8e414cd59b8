// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/neighbourhood.h"

#include <algorithm>

#include "compiler/analysis/contains.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

constexpr int64_t kMostDivisor = 1 << 16;
constexpr size_t kMostTerms = 16;  // of a sum whose remainders are looked into

// The largest power of two that divides the number, at most kMostDivisor.
int64_t LowBit(uint64_t value) {
  const uint64_t bits = value | uint64_t(kMostDivisor);
  return int64_t(bits & -bits);
}

bool KeepsValue(const ir::ExprPool& pool, const ExprNode& cast) {
  const ir::DType from = pool.Type(cast.args[0]);
  if (!ir::IsInteger(from) || !ir::IsInteger(cast.dtype)) return false;
  const bool from_natural = !ir::IsSigned(from) && ir::IsSigned(cast.dtype);
  return ir::Bits(cast.dtype) >= ir::Bits(from) + from_natural;
}

// Whether an integer is certainly not negative, if no arithmetic in it overflows.
bool IsNatural(const ir::ExprPool& pool, const Facts& facts, ExprId id) {
  if (facts.RangeOf(id).min >= 0) return true;
  const ExprNode& node = pool[id];
  const auto all = [&] { return std::ranges::all_of(node.Args(), [&](ExprId arg) { return IsNatural(pool, facts, arg); }); };
  switch (node.op) {
    case ExprOp::kAdd:
    case ExprOp::kMul:
    case ExprOp::kMin:
    case ExprOp::kDiv:
    case ExprOp::kFloorDiv:
    case ExprOp::kMod:
    case ExprOp::kFloorMod: return all();
    case ExprOp::kCast: return KeepsValue(pool, node) && all();
    default: return false;
  }
}

}  // namespace

std::optional<Steps> Neighbourhood::Of(ExprId id) const {
  if (const auto known = known_.find(ir::Index(id)); known != known_.end()) return known->second;
  std::optional<Steps> steps = Compute(id);
  if (steps) steps->divisor = std::max(steps->divisor, DivisorOf(id));  // what divides it in all iterations
  known_.emplace(ir::Index(id), steps);
  return steps;
}

bool Neighbourhood::IsOne(ExprId id) const {
  const std::optional<Steps> steps = Of(id);
  return steps && steps->step == 0;
}

int64_t Neighbourhood::DivisorOf(ExprId id) const { return ir::IsInteger(pool_.Type(id)) ? LowBit(uint64_t(facts_.DivisorOf(id))) : 1; }

std::optional<Steps> Neighbourhood::Compute(ExprId id) const {
  if (!ir::IsInteger(pool_.Type(id))) return OfTerm(id);
  const Linear linear = LinearOf(pool_, id);
  const bool is_term = linear.constant == 0 && linear.terms.size() == 1 && linear.terms.begin()->first == ir::Index(id);
  return is_term ? OfTerm(id) : OfLinear(linear);
}

std::optional<Steps> Neighbourhood::OfLinear(const Linear& linear) const {
  std::optional<Steps> sum = OfSum(linear);
  if (!sum || linear.terms.size() > kMostTerms) return sum;
  const Congruent rest = WithoutRemainders(pool_, linear);
  const std::optional<Steps> same = rest.modulus == 0 ? std::nullopt : OfSum(rest.sum);
  if (same) sum->divisor = std::max(sum->divisor, std::min(same->divisor, LowBit(uint64_t(rest.modulus))));
  return sum;
}

std::optional<Steps> Neighbourhood::OfSum(const Linear& linear) const {
  Steps sum{0, LowBit(uint64_t(linear.constant))};
  for (const auto& [term, coefficient] : linear.terms) {
    const std::optional<Steps> steps = Of(ExprId(term));
    if (!steps) return std::nullopt;
    sum.step = int64_t(uint64_t(sum.step) + uint64_t(steps->step) * uint64_t(coefficient));
    sum.divisor = std::min(sum.divisor, LowBit(uint64_t(steps->divisor) * uint64_t(coefficient)));
  }
  return sum;
}

std::optional<Steps> Neighbourhood::OfTerm(ExprId id) const {
  const ExprNode& node = pool_[id];
  switch (node.op) {
    case ExprOp::kVar: return ir::VarId(node.ref) == var_ ? Steps{1, width_} : Steps{0, 1};
    case ExprOp::kFloorDiv:
    case ExprOp::kDiv:
      if (const auto steps = OfQuotient(node)) return steps;
      break;
    case ExprOp::kFloorMod:
    case ExprOp::kMod:
      if (const auto steps = OfRemainder(node)) return steps;
      break;
    case ExprOp::kLt:
    case ExprOp::kLe:
    case ExprOp::kGt:
    case ExprOp::kGe:
      if (const auto steps = OfComparison(node)) return steps;
      break;
    case ExprOp::kSelect:
      if (const auto steps = OfSelect(node)) return steps;
      break;
    case ExprOp::kCast:
      // Arithmetic wraps between two neighbourhoods and not within one.
      if (ir::IsInteger(node.dtype) && ir::IsInteger(pool_.Type(node.args[0]))) {
        const std::optional<Steps> steps = Of(node.args[0]);
        if (steps && (steps->step == 0 || (steps->step == 1 && IsAligned(*steps)))) return steps;
      }
      break;
    default: break;
  }
  // What depends on values of which each is one is one.
  const bool one = std::ranges::all_of(node.Args(), [&](ExprId arg) { return IsOne(arg); });
  return one ? std::optional(Steps{0, 1}) : std::nullopt;
}

// v < bound and v ≥ bound change at the bound; v ≤ bound and v > bound behind it.
std::optional<Steps> Neighbourhood::OfComparison(const ExprNode& node) const {
  if (!ir::IsInteger(pool_.Type(node.args[0]))) return std::nullopt;
  const bool behind = node.op == ExprOp::kLe || node.op == ExprOp::kGt;
  for (const bool left : {true, false}) {
    const std::optional<Steps> moves = Of(node.args[left ? 0 : 1]);
    if (!moves || moves->step != 1 || !IsAligned(*moves)) continue;
    Linear bound = LinearOf(pool_, node.args[left ? 1 : 0]);
    if (left == behind) bound.constant = int64_t(uint64_t(bound.constant) + 1);
    const std::optional<Steps> stays = OfLinear(bound);
    if (stays && stays->step == 0 && IsAligned(*stays)) return Steps{0, 1};
  }
  return std::nullopt;
}

// Whether neighbours that count up from a multiple of the width have one quotient, and remainders that count up as well.
bool Neighbourhood::DividesWhole(const ExprNode& node, const Steps& x, bool truncates) const {
  const std::optional<Steps> by = Of(node.args[1]);
  return x.step == 1 && IsAligned(x) && by && by->step == 0 && IsAligned(*by) && IsNaturalHere(node.args[1]) &&
         (!truncates || IsNaturalHere(node.args[0]));
}

bool Neighbourhood::IsNaturalHere(ExprId id) const { return wraps_ ? facts_.RangeOf(id).min >= 0 : IsNatural(pool_, facts_, id); }

std::optional<Steps> Neighbourhood::OfQuotient(const ExprNode& node) const {
  const std::optional<Steps> x = ir::IsInteger(node.dtype) ? Of(node.args[0]) : std::nullopt;
  return x && DividesWhole(node, *x, node.op == ExprOp::kDiv) ? std::optional(Steps{0, 1}) : std::nullopt;
}

std::optional<Steps> Neighbourhood::OfRemainder(const ExprNode& node) const {
  const std::optional<Steps> x = ir::IsInteger(node.dtype) ? Of(node.args[0]) : std::nullopt, by = x ? Of(node.args[1]) : std::nullopt;
  if (!by || by->step != 0) return std::nullopt;
  const int64_t divisor = std::min(x->divisor, by->divisor);
  if (x->step == 0) return Steps{0, divisor};
  return DividesWhole(node, *x, node.op == ExprOp::kMod) ? std::optional(Steps{1, divisor}) : std::nullopt;
}

std::optional<Steps> Neighbourhood::OfSelect(const ExprNode& node) const {
  if (!IsOne(node.args[0])) return std::nullopt;
  const std::optional<Steps> a = Of(node.args[1]), b = Of(node.args[2]);
  if (!a || !b || a->step != b->step) return std::nullopt;
  return Steps{a->step, std::min(a->divisor, b->divisor)};
}

}  // namespace kiln::compiler
