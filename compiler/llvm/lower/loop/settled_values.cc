// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/settled_values.h"

#include <algorithm>

namespace kiln::llvm_ir {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

// The value of an integer expression, which uses one variable of the loop only, where that variable is `at`.
std::optional<int64_t> SettledValues::ValueAt(ExprId id, int variable, int64_t at) const {
  const ExprNode& node = module_.exprs[id];
  if (node.op == ExprOp::kSelect) {
    const std::optional<int64_t> chosen = ValueAt(node.args[0], variable, at);
    return chosen ? ValueAt(node.args[*chosen != 0 ? 1 : 2], variable, at) : std::nullopt;
  }
  if (node.op == ExprOp::kConstInt) return node.int_value;
  if (node.op == ExprOp::kVar) return loop_.VariableOf(id) == variable ? std::optional(at) : std::nullopt;
  if (node.op == ExprOp::kCast && ir::IsInteger(module_.exprs.Type(node.args[0]))) return ValueAt(node.args[0], variable, at);
  const int64_t modulus = node.op == ExprOp::kFloorMod ? module_.exprs.ConstInt(node.args[1]).value_or(0) : 0;
  if (modulus > 0) {
    // Multiples of the modulus do not change the remainder, so their terms may be anything.
    const compiler::Linear linear = compiler::LinearOf(module_.exprs, node.args[0]);
    int64_t sum = linear.constant;
    for (const auto& [term, coefficient] : linear.terms) {
      if (facts_.DivisorOf(ExprId(term)) * coefficient % modulus == 0) continue;
      const std::optional<int64_t> value = ExprId(term) == id ? std::nullopt : ValueAt(ExprId(term), variable, at);
      if (!value) return std::nullopt;
      sum += coefficient * *value;
    }
    return (sum % modulus + modulus) % modulus;
  }
  const bool divides = node.op == ExprOp::kFloorDiv || node.op == ExprOp::kMod, compares = node.op == ExprOp::kEq || node.op == ExprOp::kLt;
  const bool computes = node.op == ExprOp::kAdd || node.op == ExprOp::kSub || node.op == ExprOp::kMul;
  if (!divides && !compares && !computes) return std::nullopt;
  const std::optional<int64_t> a = ValueAt(node.args[0], variable, at), c = ValueAt(node.args[1], variable, at);
  if (!a || !c || (divides && (*a < 0 || *c <= 0))) return std::nullopt;
  switch (node.op) {
    case ExprOp::kAdd: return *a + *c;
    case ExprOp::kSub: return *a - *c;
    case ExprOp::kMul: return *a * *c;
    case ExprOp::kFloorDiv: return *a / *c;
    case ExprOp::kEq: return *a == *c;
    case ExprOp::kLt: return *a < *c;
    default: return *a % *c;
  }
}

// The values that the variable has for register `reg` in all threads.
std::vector<int64_t> SettledValues::PlacesOf(int variable, int64_t reg) const {
  std::vector<int64_t> places{loop_.parts[size_t(reg)][size_t(variable)]};
  int64_t weight = 1;
  for (const ir::Digit& digit : loop_.layout.dim(variable)) {
    for (size_t i = 0, count = digit.place == ir::Place::kThread ? places.size() : 0; i < count; ++i)
      for (int64_t d = 1; d < digit.size; ++d) places.push_back(places[i] + d * weight);
    weight *= digit.size;
  }
  return places;
}

// The value of an integer expression in a register's iteration, if all threads see the same.
std::optional<int64_t> SettledValues::At(ExprId id, int64_t reg) const {
  for (int v = 0; v < int(loop_.extents.size()); ++v) {
    const std::vector<int64_t> places = PlacesOf(v, reg);
    const std::optional<int64_t> value = ValueAt(id, v, places[0]);
    if (value && std::ranges::all_of(places, [&](int64_t place) { return ValueAt(id, v, place) == value; })) return value;
  }
  return std::nullopt;
}

bool SettledValues::AreOne(ExprId id, int64_t first) const {
  const int last = int(loop_.extents.size()) - 1;
  const int64_t ahead = loop_.parts[size_t(first) + 1][size_t(last)] - loop_.parts[size_t(first)][size_t(last)];
  const std::vector<int64_t> places = PlacesOf(last, first);
  const bool stays = std::ranges::all_of(places, [&](int64_t at) {
    const std::optional<int64_t> value = ValueAt(id, last, at);
    return value && value == ValueAt(id, last, at + ahead);
  });
  const auto args = module_.exprs[id].Args();
  return stays || (loop_.VariableOf(id) != last && std::ranges::all_of(args, [&](ExprId arg) { return AreOne(arg, first); }));
}

}  // namespace kiln::llvm_ir
