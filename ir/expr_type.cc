// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/expr.h"

namespace kiln::ir {
namespace {

bool IsNumber(DType t) { return t != DType::kBool; }
bool IsBits(DType t) { return !IsFloat(t); }
bool IsBool(DType t) { return t == DType::kBool; }

struct Demand {
  bool (*operand)(DType);
  std::string_view what;  // in words
};

Demand DemandOf(TypeRule rule) {
  switch (rule) {
    case TypeRule::arith:
    case TypeRule::unary: return {IsNumber, "numbers"};
    case TypeRule::integer: return {IsInteger, "integers"};
    case TypeRule::bits: return {IsBits, "integers or bool"};
    case TypeRule::logic:
    case TypeRule::negation: return {IsBool, "bool"};
    case TypeRule::math:
    case TypeRule::math2:
    case TypeRule::math3:
    case TypeRule::predicate: return {IsFloat, "floats"};
    default: return {[](DType) { return true; }, "values"};
  }
}

std::string OperandTypes(const ExprPool& pool, const ExprNode& node) {
  std::string text;
  for (ExprId arg : node.Args()) fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : " and ", Name(pool.Type(arg)));
  return text;
}

std::string CastProblem(const ExprPool& pool, const ExprNode& node) {
  DType from = pool.Type(node.args[0]);
  if (node.op != ExprOp::kReinterpret || Bits(from) == Bits(node.dtype)) return {};
  return fmt::format("reinterpret from {} ({} bits) to {} ({} bits); the widths must be equal", Name(from), Bits(from), Name(node.dtype),
                     Bits(node.dtype));
}

std::string SelectProblem(const ExprPool& pool, const ExprNode& node) {
  DType cond = pool.Type(node.args[0]), a = pool.Type(node.args[1]), b = pool.Type(node.args[2]);
  if (cond != DType::kBool) return fmt::format("the condition of {} is {}, not bool", Name(node.op), Name(cond));
  if (a != b || a != node.dtype) return fmt::format("{} of {} between {} and {}", Name(node.op), Name(node.dtype), Name(a), Name(b));
  if (node.op == ExprOp::kMasked && pool[node.args[1]].op != ExprOp::kLoad) {
    return fmt::format("masked of {}, which is no element of a buffer; select chooses between any two values", Name(pool[node.args[1]].op));
  }
  return {};
}

std::string LeafProblem(const ExprNode& node) {
  if (node.op == ExprOp::kConstInt && IsFloat(node.dtype)) return fmt::format("an integer constant of type {}", Name(node.dtype));
  if (node.op == ExprOp::kConstFloat && !IsFloat(node.dtype)) return fmt::format("a float constant of type {}", Name(node.dtype));
  return {};
}

}  // namespace

std::string TypeProblem(const ExprPool& pool, const ExprNode& node) {
  TypeRule rule = RuleOf(node.op);
  switch (rule) {
    case TypeRule::leaf: return LeafProblem(node);
    case TypeRule::cast: return CastProblem(pool, node);
    case TypeRule::select:
    case TypeRule::masked: return SelectProblem(pool, node);
    case TypeRule::load:
      for (ExprId index : node.Args()) {
        if (!IsInteger(pool.Type(index))) return fmt::format("a load index of type {}; indices are integers", Name(pool.Type(index)));
      }
      return {};
    default: break;
  }
  Demand demand = DemandOf(rule);
  DType first = pool.Type(node.args[0]);
  for (ExprId arg : node.Args()) {
    if (pool.Type(arg) != first) return fmt::format("{} of {}; operands must have one type", Name(node.op), OperandTypes(pool, node));
    if (!demand.operand(pool.Type(arg))) return fmt::format("{} of {}; it takes {}", Name(node.op), OperandTypes(pool, node), demand.what);
  }
  bool gives_bool = rule == TypeRule::compare || rule == TypeRule::predicate;
  DType result = gives_bool ? DType::kBool : first;
  if (node.dtype != result) return fmt::format("{} of {} gives {}, not {}", Name(node.op), Name(first), Name(result), Name(node.dtype));
  return {};
}

}  // namespace kiln::ir
