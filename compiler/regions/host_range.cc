// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/host_range.h"

#include <algorithm>
#include <set>
#include <utility>

#include "compiler/regions/sums.h"

namespace kiln::compiler {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

class HostRanges::Query {
 public:
  Query(const HostRanges& ranges, std::vector<ExprId>& positive) : ranges_(ranges), pool_(ranges.module_.exprs), positive_(positive) {}

  HostRange Of(ExprId id) {
    if (const auto known = known_.find(ir::Index(id)); known != known_.end()) return known->second;
    const HostRange range = Compute(id);
    known_.emplace(ir::Index(id), range);
    return range;
  }

  bool IsNatural(const HostRange& range) { return range.low && IsAtLeast(*range.low, 0); }

 private:
  HostRange Compute(ExprId id) {
    const ExprNode node = pool_[id];
    if (IsForHost(pool_, ranges_.module_.vars, id)) return OfHost(id);
    switch (node.op) {
      case ExprOp::kVar: return OfVar(ir::VarId(node.ref));
      case ExprOp::kAdd: return {Both(ExprOp::kAdd, Of(node.args[0]).low, Of(node.args[1]).low), Both(ExprOp::kAdd, Of(node.args[0]).high, Of(node.args[1]).high)};
      case ExprOp::kSub: return {Both(ExprOp::kSub, Of(node.args[0]).low, Of(node.args[1]).high), Both(ExprOp::kSub, Of(node.args[0]).high, Of(node.args[1]).low)};
      case ExprOp::kMin:
      case ExprOp::kMax: return {Both(node.op, Of(node.args[0]).low, Of(node.args[1]).low), Both(node.op, Of(node.args[0]).high, Of(node.args[1]).high)};
      case ExprOp::kMul: return OfProduct(Of(node.args[0]), Of(node.args[1]));
      case ExprOp::kDiv:
      case ExprOp::kFloorDiv: return OfQuotient(Of(node.args[0]), Of(node.args[1]));
      case ExprOp::kMod:
      case ExprOp::kFloorMod: return OfRest(node.op, Of(node.args[0]), Of(node.args[1]));
      case ExprOp::kSelect: return {Both(ExprOp::kMin, Of(node.args[1]).low, Of(node.args[2]).low), Both(ExprOp::kMax, Of(node.args[1]).high, Of(node.args[2]).high)};
      case ExprOp::kCast: {
        const ir::DType from = pool_.Type(node.args[0]);
        const bool widens = ir::IsInteger(from) && ir::IsSigned(from) && ir::IsInteger(node.dtype) && ir::Bits(node.dtype) >= ir::Bits(from);
        return widens ? Of(node.args[0]) : HostRange{};
      }
      default: return {};
    }
  }

  // The launcher rounds divisions downwards, so it is to check that nothing negative is divided.
  HostRange OfHost(ExprId id) {
    CheckDivisions(id);
    const ExprId wide = pool_.Cast(ir::DType::kI64, id);
    return {wide, wide};
  }

  void CheckDivisions(ExprId id) {
    if (!checked_.insert(ir::Index(id)).second) return;
    const ExprNode node = pool_[id];
    for (ExprId arg : node.Args()) CheckDivisions(arg);
    if (node.op != ExprOp::kDiv && node.op != ExprOp::kMod && node.op != ExprOp::kFloorDiv && node.op != ExprOp::kFloorMod) return;
    IsAtLeast(node.args[0], 0);
    IsAtLeast(node.args[1], 1);
  }

  HostRange OfVar(ir::VarId var) {
    const auto extent = ranges_.extents_.find(var);
    if (extent == ranges_.extents_.end()) return {};
    const std::optional<ExprId> end = Of(extent->second).high;
    return {Wide(0), end ? std::optional(pool_.Sub(*end, Wide(1))) : std::nullopt};
  }

  HostRange OfProduct(HostRange a, HostRange b) {
    if (a.low && a.low == a.high && pool_.ConstInt(*a.low)) std::swap(a, b);
    if (const std::optional<int64_t> factor = b.low && b.low == b.high ? pool_.ConstInt(*b.low) : std::nullopt) {
      if (*factor < 0) std::swap(a.low, a.high);
      return {Both(ExprOp::kMul, a.low, b.low), Both(ExprOp::kMul, a.high, b.low)};
    }
    if (!IsNatural(a) || !IsNatural(b)) return {};
    return {Both(ExprOp::kMul, a.low, b.low), Both(ExprOp::kMul, a.high, b.high)};
  }

  HostRange OfQuotient(const HostRange& a, const HostRange& b) {
    if (!IsNatural(a) || !b.low || !IsAtLeast(*b.low, 1)) return {};
    const std::optional<ExprId> low = pool_.IsConst(*a.low, 0) ? std::nullopt : Both(ExprOp::kFloorDiv, a.low, b.high);
    return {low ? low : Wide(0), Both(ExprOp::kFloorDiv, a.high, b.low)};
  }

  // What is left of a natural number is one, whatever divides.
  HostRange OfRest(ExprOp op, const HostRange& a, const HostRange& b) {
    if (!IsNatural(a)) return {};
    if (op == ExprOp::kFloorMod && !(b.low && IsAtLeast(*b.low, 1))) return {};
    HostRange range{Wide(0), a.high};
    if (b.high && b.low && IsAtLeast(*b.low, 1)) range.high = Smaller(a.high, pool_.Sub(*b.high, Wide(1)));
    return range;
  }

  std::optional<ExprId> Smaller(std::optional<ExprId> a, ExprId b) { return a ? pool_.Make(ExprOp::kMin, {*a, b}) : b; }

  std::optional<ExprId> Both(ExprOp op, std::optional<ExprId> a, std::optional<ExprId> b) {
    if (!a || !b) return std::nullopt;
    return pool_.Make(op, {*a, *b});
  }

  ExprId Wide(int64_t value) { return pool_.Int(value, ir::DType::kI64); }

  // Whether a host expression is at least 0 or 1, which the launcher is to check where it is no constant.
  bool IsAtLeast(ExprId id, int64_t least) {
    if (const std::optional<int64_t> value = pool_.ConstInt(id)) return *value >= least;
    const ExprId wide = pool_.Cast(ir::DType::kI64, id);
    const ExprId one = least == 1 ? wide : pool_.Add(wide, Wide(1 - least));
    if (std::ranges::find(positive_, one) == positive_.end()) positive_.push_back(one);
    return true;
  }

  const HostRanges& ranges_;
  ir::ExprPool& pool_;
  std::vector<ExprId>& positive_;
  std::map<uint32_t, HostRange> known_;
  std::set<uint32_t> checked_;
};

HostRanges::HostRanges(ir::Module& module, const ir::Kernel& kernel) : module_(module) {
  for (size_t axis = 0; axis < kernel.block_vars.size(); ++axis) Enter(kernel.block_vars[axis], kernel.grid[axis]);
}

void HostRanges::Enter(ir::VarId var, ExprId extent) { extents_.insert_or_assign(var, extent); }

HostRange HostRanges::Of(ExprId id, std::vector<ExprId>& positive) const { return Query(*this, positive).Of(id); }

bool HostRanges::IsNatural(ExprId id, std::vector<ExprId>& positive) const {
  Query query(*this, positive);
  return query.IsNatural(query.Of(id));
}

}  // namespace kiln::compiler
