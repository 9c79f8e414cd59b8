// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/digits.h"

#include <algorithm>
#include <cstdlib>

#include "compiler/analysis/contains.h"
#include "ir/visit.h"

namespace kiln::compiler {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using ir::VarId;
using ir::VarKind;

Digits::Digits(const ir::Module& module, const ir::Kernel& kernel) : module_(module), facts_(module) {
  facts_.EnterKernel(kernel);
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) facts_.EnterLoop(*loop);
  });
  for (const ir::Stmt& stmt : kernel.body) {  // outside of loops and branches: each is computed once, by all threads
    const auto* let = std::get_if<ir::Let>(&stmt.op);
    if (let != nullptr && IsOfBlock(let->value, /*loads=*/true)) lets_.insert(let->var);
  }
}

std::optional<std::vector<Digit>> Digits::Of(ExprId index) const {
  std::vector<Digit> digits;
  for (const auto& [term, weight] : LinearOf(module_.exprs, index).terms) {
    if (IsOfBlock(ExprId(term))) continue;
    const std::optional<Digit> digit = OfTerm(ExprId(term), std::abs(weight));
    if (!digit) return std::nullopt;
    digits.push_back(*digit);
  }
  std::ranges::sort(digits, {}, &Digit::weight);
  return digits;
}

std::optional<Digit> Digits::OfTerm(ExprId term, int64_t weight) const {
  const ExprNode& node = module_.exprs[term];
  const bool loop = node.op == ExprOp::kVar && module_.vars[node.ref].kind == VarKind::kLoop;
  if (!loop && !IsOfThread(term)) return std::nullopt;
  const Range range = facts_.RangeOf(term);
  const bool bounded = range.min > -kUnbounded && range.max < kUnbounded;
  const int64_t reach = bounded ? std::max<int64_t>(0, range.max - range.min) : kUnbounded;
  return Digit{term, weight, reach, loop ? std::optional(VarId(node.ref)) : std::nullopt};
}

bool Digits::AreTold(std::span<const Digit> digits) {
  int64_t lighter = 0;
  for (const Digit& digit : digits) {
    if (digit.weight <= lighter) return false;
    const bool large = digit.reach >= kUnbounded / digit.weight;
    lighter = large ? kUnbounded : std::min(kUnbounded, lighter + digit.weight * digit.reach);
  }
  return true;
}

bool Digits::TellThread(const std::vector<ExprId>& indices, const ir::ThreadRange& threads) const {
  const auto [it, added] = tell_thread_.try_emplace({threads.begin, threads.end, indices});
  if (added) it->second = AreApart(indices, threads);
  return it->second;
}

bool Digits::TellIteration(const std::vector<ExprId>& indices, VarId loop, const ir::ThreadRange& threads) const {
  return std::ranges::any_of(indices, [&](ExprId index) {
    const auto digits = ToldIn(index, threads);
    return digits && std::ranges::find(*digits, loop, &Digit::loop) != digits->end();
  });
}

// The digits of an index that determines all of them, where just these threads come.
std::optional<std::vector<Digit>> Digits::ToldIn(ExprId index, const ir::ThreadRange& threads) const {
  auto digits = Of(index);
  if (!digits) return std::nullopt;
  for (Digit& digit : *digits) {
    if (!digit.loop) digit.reach = Reach(digit.term, threads).value_or(digit.reach);
  }
  return AreTold(*digits) ? std::move(digits) : std::nullopt;
}

bool Digits::AreApart(const std::vector<ExprId>& indices, const ir::ThreadRange& threads) const {
  std::vector<ExprId> told;
  for (const ExprId index : indices) {
    const auto digits = ToldIn(index, threads);
    if (!digits) continue;
    for (const Digit& digit : *digits) {
      if (!digit.loop) told.push_back(digit.term);
    }
  }
  std::set<std::vector<int64_t>> seen;
  for (int64_t thread = threads.begin; thread < threads.end; ++thread) {
    std::vector<int64_t> values;
    for (const ExprId term : told) {
      const auto value = At(term, thread);
      if (!value) return false;
      values.push_back(*value);
    }
    if (!seen.insert(std::move(values)).second) return false;
  }
  return true;
}

// Of a term that depends on the thread's number alone: from its least value in these threads to the greatest.
std::optional<int64_t> Digits::Reach(ExprId term, const ir::ThreadRange& threads) const {
  int64_t least = INT64_MAX, greatest = INT64_MIN;
  for (int64_t thread = threads.begin; thread < threads.end; ++thread) {
    const auto value = At(term, thread);
    if (!value) return std::nullopt;
    least = std::min(least, *value), greatest = std::max(greatest, *value);
  }
  return threads.begin < threads.end ? greatest - least : 0;
}

// Whether it is the same in all threads and iterations. `loads`: what is loaded from tensors counts as such, for it is computed once; nothing
// that other threads write meanwhile has reached it, or the program is a race.
bool Digits::IsOfBlock(ExprId id, bool loads) const {
  return !Contains(module_.exprs, id, [&](ExprId part) {
    const ExprNode& node = module_.exprs[part];
    if (node.op == ExprOp::kLoad) return !loads || module_[ir::BufferId(node.ref)].space != ir::Space::kGlobal;
    if (node.op != ExprOp::kVar) return false;
    const VarKind kind = module_.vars[node.ref].kind;
    return kind != VarKind::kBlock && kind != VarKind::kSymbol && kind != VarKind::kScalar && !lets_.contains(VarId(node.ref));
  });
}

bool Digits::IsOfThread(ExprId id) const {
  const ExprNode& node = module_.exprs[id];
  if (node.op == ExprOp::kLoad) return false;
  if (node.op == ExprOp::kVar) return module_.vars[node.ref].kind == VarKind::kThread;
  return std::ranges::all_of(node.Args(), [&](ExprId arg) { return IsOfThread(arg); });
}

// nullopt for operations that are rare in indices.
std::optional<int64_t> Digits::At(ExprId id, int64_t thread) const {
  const ExprNode& node = module_.exprs[id];
  if (node.op == ExprOp::kVar) return thread;
  if (const auto constant = module_.exprs.ConstInt(id)) return constant;
  std::vector<int64_t> args;
  for (const ExprId arg : node.Args()) {
    const auto value = At(arg, thread);
    if (!value) return std::nullopt;
    args.push_back(*value);
  }
  const auto positive = [&] { return args[0] >= 0 && args[1] > 0; };
  switch (node.op) {
    case ExprOp::kAdd: return args[0] + args[1];
    case ExprOp::kSub: return args[0] - args[1];
    case ExprOp::kMul: return args[0] * args[1];
    case ExprOp::kDiv:
    case ExprOp::kFloorDiv: return positive() ? std::optional(args[0] / args[1]) : std::nullopt;
    case ExprOp::kMod:
    case ExprOp::kFloorMod: return positive() ? std::optional(args[0] % args[1]) : std::nullopt;
    default: return std::nullopt;
  }
}

}  // namespace kiln::compiler
