// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/host_range.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "compiler/regions/sums.h"

namespace kiln::compiler {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using End = std::optional<ExprId>;

constexpr int64_t kMostTimes = int64_t{1} << 20;  // of an end, so that none overflows (sums.cc bounds its coefficients)

class HostRanges::Query {
 public:
  Query(const HostRanges& ranges, std::vector<ExprId>& positive)
      : ranges_(ranges), pool_(ranges.module_.exprs), positive_(positive), sums_(ranges.module_) {}

  End Low(ExprId id) { return Known(low_, id, /*low=*/true); }
  End High(ExprId id) { return Known(high_, id, /*low=*/false); }
  bool IsNatural(ExprId id) { return IsAtLeast(id, 0); }

 private:
  // Each end asks for no more conditions than it needs.
  End Known(std::map<uint32_t, End>& known, ExprId id, bool low) {
    if (const auto it = known.find(ir::Index(id)); it != known.end()) return it->second;
    const End end = Compute(id, low);
    known.emplace(ir::Index(id), end);
    return end;
  }
  End Of(ExprId id, bool low) { return low ? Low(id) : High(id); }

  End Compute(ExprId id, bool low) {
    const ExprNode node = pool_[id];
    if (IsForHost(pool_, ranges_.module_.vars, id)) return OfHost(id);
    const ExprId a = node.args[0], b = node.args[1];
    if (const End counted = OfCounted(id, low)) return counted;
    switch (node.op) {
      case ExprOp::kVar: return OfVar(ir::VarId(node.ref), low);
      case ExprOp::kAdd: return Both(node.op, Of(a, low), Of(b, low));
      case ExprOp::kSub: return Both(node.op, Of(a, low), Of(b, !low));
      case ExprOp::kMin:
      case ExprOp::kMax: return Both(node.op, Of(a, low), Of(b, low));
      case ExprOp::kMul: return OfProduct(a, b, low);
      case ExprOp::kDiv:
      case ExprOp::kFloorDiv: return OfQuotient(a, b, low);
      case ExprOp::kMod:
      case ExprOp::kFloorMod: return OfRest(node.op, a, b, low);
      case ExprOp::kSelect: return Both(low ? ExprOp::kMin : ExprOp::kMax, Of(node.args[1], low), Of(node.args[2], low));
      case ExprOp::kCast: {
        const ir::DType from = pool_.Type(a);
        const bool widens = ir::IsInteger(from) && ir::IsSigned(from) && ir::IsInteger(node.dtype) && ir::Bits(node.dtype) >= ir::Bits(from);
        return widens ? Of(a, low) : std::nullopt;
      }
      default: return std::nullopt;
    }
  }

  // The launcher rounds divisions downwards, so it is to check that nothing negative is divided.
  ExprId OfHost(ExprId id) {
    CheckDivisions(id);
    return pool_.Cast(ir::DType::kI64, id);
  }

  void CheckDivisions(ExprId id) {
    if (!checked_.insert(ir::Index(id)).second) return;
    const ExprNode node = pool_[id];
    for (ExprId arg : node.Args()) CheckDivisions(arg);
    if (node.op != ExprOp::kDiv && node.op != ExprOp::kMod && node.op != ExprOp::kFloorDiv && node.op != ExprOp::kFloorMod) return;
    Require(node.args[0], 0);
    Require(node.args[1], 1);
  }

  End OfVar(ir::VarId var, bool low) {
    const auto extent = ranges_.extents_.find(var);
    if (extent == ranges_.extents_.end()) return std::nullopt;
    if (low) return Wide(0);
    // An extent of the block's own, as where blocks share out tiles, says little of what is added to the variable: conditions might never hold.
    if (!IsForHost(pool_, ranges_.module_.vars, extent->second)) return std::nullopt;
    return Both(ExprOp::kSub, High(extent->second), Wide(1));
  }

  // A sum with a variable that counts to an end of the block's own: `x` of `for (x = block; x < end; x += step)` is block + step · variable, which
  // is at most end − 1. A multiple of x is at most that of end − 1.
  End OfCounted(ExprId id, bool low) {
    const ExprOp op = pool_[id].op;
    if (ranges_.counts_.empty() || (op != ExprOp::kAdd && op != ExprOp::kSub)) return std::nullopt;
    const std::optional<Sum> sum = sums_.Of(id);
    if (!sum) return std::nullopt;
    for (const auto& [product, coefficient] : *sum) {
      if (!product.device || pool_[*product.device].op != ExprOp::kVar) continue;
      const auto count = ranges_.counts_.find(ir::VarId(pool_[*product.device].ref));
      if (count == ranges_.counts_.end() || count->second.factors != product.factors) continue;
      const int64_t times = coefficient / count->second.constant;
      if (times * count->second.constant != coefficient || (low ? times >= 0 : times <= 0) || std::abs(times) > kMostTimes) continue;
      Sum rest = *sum;
      Add(rest, {{product, coefficient}}, -1);
      Add(rest, count->second.most, times);
      if (UnknownParts(rest) < UnknownParts(*sum)) return Of(sums_.Write(rest), low);
    }
    return std::nullopt;
  }
  static size_t UnknownParts(const Sum& sum) {
    return size_t(std::ranges::count_if(sum, [](const auto& term) { return term.first.device.has_value(); }));
  }

  End OfProduct(ExprId a, ExprId b, bool low) {
    if (pool_.ConstInt(a)) std::swap(a, b);
    if (const std::optional<int64_t> factor = pool_.ConstInt(b)) return Both(ExprOp::kMul, Of(a, *factor < 0 ? !low : low), Wide(*factor));
    if (!IsNatural(a) || !IsNatural(b)) return std::nullopt;
    return Both(ExprOp::kMul, Of(a, low), Of(b, low));
  }

  End OfQuotient(ExprId a, ExprId b, bool low) {
    if (!IsNatural(a) || !IsAtLeast(b, 1)) return std::nullopt;
    if (!low) return Both(ExprOp::kFloorDiv, High(a), Low(b));
    const End least = Low(a), most = pool_.IsConst(*least, 0) ? std::nullopt : High(b);
    return most ? Both(ExprOp::kFloorDiv, least, most) : Wide(0);
  }

  // What is left of a natural number is one, whatever divides.
  End OfRest(ExprOp op, ExprId a, ExprId b, bool low) {
    if (!IsNatural(a) || (op == ExprOp::kFloorMod && !IsAtLeast(b, 1))) return std::nullopt;
    if (low) return Wide(0);
    const End most = High(b) && IsAtLeast(b, 1) ? Both(ExprOp::kSub, High(b), Wide(1)) : std::nullopt;
    return most && High(a) ? Both(ExprOp::kMin, High(a), most) : most ? most : High(a);
  }

  End Both(ExprOp op, End a, End b) { return a && b ? End(pool_.Make(op, {*a, *b})) : std::nullopt; }

  ExprId Wide(int64_t value) { return pool_.Int(value, ir::DType::kI64); }

  bool IsAtLeast(ExprId id, int64_t least) {
    const End low = Low(id);
    return low && Require(*low, least);
  }

  // Whether an expression for the launcher is at least 0 or 1, which the launcher is to check where it is no constant.
  bool Require(ExprId id, int64_t least) {
    if (const std::optional<int64_t> value = pool_.ConstInt(id)) return *value >= least;
    const ExprId wide = pool_.Cast(ir::DType::kI64, id);
    const ExprId one = least == 1 ? wide : pool_.Add(wide, Wide(1 - least));
    if (std::ranges::find(positive_, one) == positive_.end()) positive_.push_back(one);
    return true;
  }

  const HostRanges& ranges_;
  ir::ExprPool& pool_;
  std::vector<ExprId>& positive_;
  Sums sums_;
  std::map<uint32_t, End> low_, high_;
  std::set<uint32_t> checked_;
};

HostRanges::HostRanges(ir::Module& module, const ir::Kernel& kernel) : module_(module) {
  for (size_t axis = 0; axis < kernel.block_vars.size(); ++axis) Enter(kernel.block_vars[axis], kernel.grid[axis]);
}

void HostRanges::Enter(ir::VarId var, ExprId extent) {
  extents_.insert_or_assign(var, extent);
  if (IsForHost(module_.exprs, module_.vars, extent)) return;
  if (std::optional<Count> count = CountOf(extent)) counts_.insert_or_assign(var, std::move(*count));
}

// The extent is span / step, in less bits, no more than a number, and 0 for steps downwards: step · variable is at most span − step.
std::optional<HostRanges::Count> HostRanges::CountOf(ExprId extent) const {
  const ir::ExprPool& pool = module_.exprs;
  ExprNode node = pool[extent];
  std::vector<ExprId> positive;
  for (;; node = pool[extent]) {
    if (node.op == ExprOp::kCast && ir::IsInteger(node.dtype) && ir::IsInteger(pool.Type(node.args[0]))) {
      extent = node.args[0];
    } else if (node.op == ExprOp::kMin && pool.ConstInt(node.args[1])) {
      extent = node.args[0];
    } else if (node.op == ExprOp::kSelect && pool.IsZero(node.args[2])) {
      if (pool[node.args[0]].op == ExprOp::kGt && pool.IsZero(pool[node.args[0]].args[1])) positive.push_back(pool[node.args[0]].args[0]);
      extent = node.args[1];
    } else {
      break;
    }
  }
  Sums sums(module_);
  const bool divides = node.op == ExprOp::kFloorDiv || node.op == ExprOp::kDiv;
  std::optional<Sum> span = sums.Of(divides ? node.args[0] : extent);
  const std::optional<Sum> step = divides ? sums.Of(node.args[1]) : Sum{{{}, 1}};
  if (!span || !step || step->size() != 1) return std::nullopt;
  const auto& [product, constant] = *step->begin();
  const bool is_upwards = std::ranges::any_of(positive, [&](ExprId x) { return sums.Of(x) == step; });
  if (product.device || constant < 1 || (!product.factors.empty() && !is_upwards)) return std::nullopt;
  Add(*span, *step, -1);
  return Count{constant, product.factors, std::move(*span)};
}

std::optional<ExprId> HostRanges::Low(ExprId id, std::vector<ExprId>& positive) const { return Query(*this, positive).Low(id); }
std::optional<ExprId> HostRanges::High(ExprId id, std::vector<ExprId>& positive) const { return Query(*this, positive).High(id); }
bool HostRanges::IsNatural(ExprId id, std::vector<ExprId>& positive) const { return Query(*this, positive).IsNatural(id); }

}  // namespace kiln::compiler
