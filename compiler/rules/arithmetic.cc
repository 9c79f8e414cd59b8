// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/arithmetic.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>

#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprOp;
using ir::TypeRule;

// Full operations around what the special-function unit computes, as CUDA's math library has them with approximations allowed.
double AroundOf(ExprOp op) {
  switch (op) {
    case ExprOp::kExp: return 1;
    case ExprOp::kDiv:
    case ExprOp::kDivFull:
    case ExprOp::kSqrt: return 2;
    case ExprOp::kSigmoid: return 3;
    case ExprOp::kPow: return 4;
    case ExprOp::kErf: return 20;
    default: return 0;
  }
}

class Counter {
 public:
  Counter(const ir::Module& module, const ir::For& loop) : module_(module), loop_(loop) {}

  void Count(ir::ExprId id) { Visit(id); }
  // A value that serves several elements is moved to each; a constant stands in what uses it.
  void CountStored(ir::ExprId id) {
    const uint32_t uses = Visit(id);
    if (module_.exprs[id].arg_count > 0 && ShareOf(uses) < 1) ++counted.full;
  }

  Operations counted;

 private:
  // The variables of the loop that the expression uses, as bits. A product that is added to something takes no operation of its own.
  uint32_t Visit(ir::ExprId id, bool added = false) {
    if (const auto known = seen_.find(id); known != seen_.end()) return known->second;
    const ir::ExprNode& node = module_.exprs[id];
    uint32_t uses = 0;
    if (node.op == ExprOp::kVar) {
      const auto at = std::ranges::find(loop_.vars, ir::VarId(node.ref));
      if (at != loop_.vars.end()) uses = 1u << (at - loop_.vars.begin());
    }
    const bool adds = (node.op == ExprOp::kAdd || node.op == ExprOp::kSub) && ir::IsFloat(node.dtype);
    const Operations before = counted;
    for (ir::ExprId arg : node.Args()) uses |= Visit(arg, adds);
    if (node.op == ExprOp::kLoad) counted = before;  // its indices are arithmetic of addresses
    seen_[id] = uses;
    const TypeRule rule = ir::RuleOf(node.op);
    if (rule == TypeRule::leaf || rule == TypeRule::load) return uses;
    const double share = ShareOf(uses);
    if (added && node.op == ExprOp::kMul && share == 1) return uses;
    const bool special = rule == TypeRule::math || rule == TypeRule::math2 || (node.op == ExprOp::kDiv && ir::IsFloat(node.dtype));
    if (special) {
      counted.special += share;
      counted.around += share * AroundOf(node.op);
    } else {
      (IsFull(node) ? counted.full : counted.half) += share;
    }
    return uses;
  }

  static bool IsFull(const ir::ExprNode& node) {
    return ir::IsFloat(node.dtype) && (node.op == ExprOp::kAdd || node.op == ExprOp::kSub || node.op == ExprOp::kMul || node.op == ExprOp::kNeg ||
                                       node.op == ExprOp::kAbs || node.op == ExprOp::kFma);
  }

  // In how many iterations, of one, what uses these variables is computed.
  double ShareOf(uint32_t uses) const {
    double share = 1;
    for (size_t v = 0; v < loop_.vars.size(); ++v)
      if ((uses >> v & 1) == 0) share /= double(std::max<int64_t>(1, module_.exprs.ConstInt(loop_.extents[v]).value_or(1)));
    return share;
  }

  const ir::Module& module_;
  const ir::For& loop_;
  std::map<ir::ExprId, uint32_t> seen_;
};

double CyclesOfLanes(const Operations& each, double lanes, const target::Target& target) {
  return std::max(lanes * (each.full + each.half) / target.costs.lanes, lanes * each.special / target.costs.special_lanes);
}

double ElementsOf(std::span<const int64_t> extents) { return std::accumulate(extents.begin(), extents.end(), 1.0, std::multiplies<>()); }

double IterationsOf(const ir::Module& module, const ir::For& loop) {
  double iterations = 1;
  for (const ir::ExprId extent : loop.extents) iterations *= double(module.exprs.ConstInt(extent).value_or(1));
  return iterations;
}

}  // namespace

Operations OperationsOf(const ir::Module& module, const ir::For& loop) {
  Counter counter(module, loop);
  ir::Walk(loop.body, [&](const ir::Stmt& inner) {
    if (const auto* store = std::get_if<ir::Store>(&inner.op)) counter.CountStored(store->value);
    if (const auto* let = std::get_if<ir::Let>(&inner.op)) counter.Count(let->value);
  });
  return counter.counted;
}

double ArithmeticCycles(const ir::Module& module, const ir::Kernel& kernel, const ir::Stmt& stmt, const target::Target& target) {
  if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) {
    const ir::Buffer& source = module[reduce->src.buffer];
    return source.layout ? CyclesOfLanes({.full = 1}, double(source.layout->Registers()) * kernel.threads, target) : 0;
  }
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || !loop->layout) return 0;
  return CyclesOfLanes(OperationsOf(module, *loop), double(loop->layout->Registers()) * kernel.threads, target);
}

double ArithmeticCycles(const ir::Module& module, const ir::Stmt& stmt, const target::Target& target) {
  if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) return CyclesOfLanes({.full = 1}, ElementsOf(reduce->src.extents), target);
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel) return 0;
  return CyclesOfLanes(OperationsOf(module, *loop), IterationsOf(module, *loop), target);
}

}  // namespace kiln::compiler
