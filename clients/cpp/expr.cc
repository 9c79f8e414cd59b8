// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/expr.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "clients/cpp/builder_state.h"
#include "ir/expr/numeric.h"

namespace kiln {

using ir::ExprOp;
using ir::TypeRule;

static_assert(int(DType::kBool) == int(ir::DType::kBool) && int(DType::kF16) == int(ir::DType::kF16));
static_assert(int(DType::kF8E5M2FNUZ) == int(ir::DType::kF8E5M2FNUZ) && int(DType::kF4E2M1) == int(ir::DType::kF4E2M1));

std::optional<DType> Expr::dtype() const { return BuilderState::TypeOf(*this); }

std::optional<DType> BuilderState::TypeOf(const Expr& a) {
  const auto* node = std::get_if<Node>(&a.value_);
  if (node == nullptr) return std::nullopt;
  return DType(node->state->module.exprs.Type(ir::ExprId(node->id)));
}

// The builder of the operands; null where all are numbers or `problem` says what is wrong.
BuilderState* BuilderState::Common(std::initializer_list<const Expr*> args, std::string& problem) {
  BuilderState* state = nullptr;
  for (const Expr* arg : args) {
    if (const auto* broken = std::get_if<Broken>(&arg->value_)) problem = broken->why;
    const auto* node = std::get_if<Node>(&arg->value_);
    if (node == nullptr) continue;
    if (state != nullptr && state != node->state) problem = "an expression of values of two builders";
    state = node->state;
  }
  if (state == nullptr && problem.empty()) {
    problem = "an operation on numbers alone; work it out in C++, or give one of them a type with Builder::Number";
  }
  return problem.empty() ? state : nullptr;
}

ir::ExprId BuilderState::TakeNumber(const Expr& a, ir::DType wanted) {
  const auto refuse = [&](std::string text) {
    broken.push_back(fmt::format("the number {} where {} is expected", text, ir::Name(wanted)));
    return module.exprs.Int(0);
  };
  if (const auto* truth = std::get_if<bool>(&a.value_)) {
    return wanted == ir::DType::kBool ? module.exprs.Bool(*truth) : refuse(*truth ? "true" : "false");
  }
  if (const auto* real = std::get_if<double>(&a.value_)) {
    return ir::IsFloat(wanted) ? module.exprs.Float(*real, wanted) : refuse(fmt::format("{}", *real));
  }
  const auto integer = std::get<std::int64_t>(a.value_);
  if (ir::IsFloat(wanted)) return module.exprs.Float(double(integer), wanted);
  const int bits = ir::Bits(wanted);
  const bool is_signed = ir::IsSigned(wanted);
  const bool fits = bits >= 64 || (is_signed ? std::abs(integer + (integer < 0)) < std::int64_t{1} << (bits - 1)
                                             : integer >= 0 && integer < std::int64_t{1} << bits);
  return fits && wanted != ir::DType::kBool ? module.exprs.Int(integer, wanted) : refuse(fmt::format("{}", integer));
}

ir::ExprId BuilderState::Take(const Expr& a, ir::DType wanted) {
  if (const auto* why = std::get_if<Broken>(&a.value_)) {
    broken.push_back(why->why);
    return module.exprs.Int(0);
  }
  const auto* node = std::get_if<Node>(&a.value_);
  if (node == nullptr) return TakeNumber(a, wanted);
  if (node->state == this) return ir::ExprId(node->id);
  broken.push_back("a value of another builder");
  return module.exprs.Int(0);
}

ir::ExprId BuilderState::Take(const Expr& a) {
  if (std::holds_alternative<bool>(a.value_)) return Take(a, ir::DType::kBool);
  if (std::holds_alternative<double>(a.value_)) return Take(a, ir::DType::kF32);
  return Take(a, ir::DType::kI32);
}

std::vector<ir::ExprId> BuilderState::TakeAll(const std::vector<Expr>& exprs) {
  std::vector<ir::ExprId> ids;
  for (const Expr& expr : exprs) ids.push_back(Take(expr));
  return ids;
}

Expr BuilderState::Apply(ExprOp op, std::initializer_list<const Expr*> args) {
  std::string problem;
  BuilderState* state = Common(args, problem);
  if (state == nullptr) return Expr(Broken{std::move(problem)});
  const TypeRule rule = ir::RuleOf(op);
  const bool select = ir::Chooses(op);
  // Numbers take the type of the first operand that has one; a select's condition does not count.
  std::optional<DType> type;
  for (const Expr* arg : args) {
    if (!type && !(select && arg == *args.begin())) type = TypeOf(*arg);
  }
  ir::ExprPool& pool = state->module.exprs;
  const std::size_t broken_before = state->broken.size();
  ir::ExprNode node{.op = op, .dtype = ir::DType::kF32, .arg_count = std::uint8_t(args.size())};
  for (std::size_t i = 0; i < args.size(); ++i) {
    const Expr& arg = **(args.begin() + i);
    node.args[i] = type && !(select && i == 0) ? state->Take(arg, ir::DType(*type)) : state->Take(arg);
  }
  if (state->broken.size() > broken_before) {
    problem = std::move(state->broken.back());
    state->broken.resize(broken_before);
    return Expr(Broken{std::move(problem)});
  }
  const bool gives_bool = rule == TypeRule::compare || rule == TypeRule::predicate;
  node.dtype = gives_bool ? ir::DType::kBool : pool.Type(node.args[select ? 1 : 0]);
  problem = ir::TypeProblem(pool, node);
  if (!problem.empty()) return Expr(Broken{problem + " (Cast converts)"});
  return state->Give(pool.Simplified(node));
}

Expr BuilderState::Convert(ExprOp op, DType dtype, const Expr& a) {
  std::string problem;
  BuilderState* state = Common({&a}, problem);
  if (state == nullptr) return Expr(Broken{std::move(problem)});
  ir::ExprNode node{.op = op, .dtype = ir::DType(dtype), .arg_count = 1, .args = {state->Take(a)}};
  problem = ir::TypeProblem(state->module.exprs, node);
  if (!problem.empty()) return Expr(Broken{std::move(problem)});
  return state->Give(state->module.exprs.Simplified(node));
}

#define KILN_UNARY(name, op) \
  Expr name(const Expr& a) { return BuilderState::Apply(ExprOp::op, {&a}); }
#define KILN_BINARY(name, op) \
  Expr name(const Expr& a, const Expr& b) { return BuilderState::Apply(ExprOp::op, {&a, &b}); }
KILN_BINARY(operator+, kAdd)
KILN_BINARY(operator-, kSub)
KILN_BINARY(operator*, kMul)
KILN_BINARY(operator/, kDiv)
KILN_BINARY(operator%, kMod)
KILN_UNARY(operator-, kNeg)
KILN_BINARY(operator&, kBitAnd)
KILN_BINARY(operator|, kBitOr)
KILN_BINARY(operator^, kBitXor)
KILN_UNARY(operator~, kBitNot)
KILN_BINARY(operator<<, kShl)
KILN_BINARY(operator>>, kShr)
KILN_BINARY(operator&&, kAnd)
KILN_BINARY(operator||, kOr)
KILN_UNARY(operator!, kNot)
KILN_BINARY(operator==, kEq)
KILN_BINARY(operator!=, kNe)
KILN_BINARY(operator<, kLt)
KILN_BINARY(operator<=, kLe)
KILN_BINARY(operator>, kGt)
KILN_BINARY(operator>=, kGe)
KILN_BINARY(FloorDiv, kFloorDiv)
KILN_BINARY(FloorMod, kFloorMod)
KILN_BINARY(Min, kMin)
KILN_BINARY(Max, kMax)
KILN_UNARY(Abs, kAbs)
KILN_UNARY(Floor, kFloor)
KILN_UNARY(Ceil, kCeil)
KILN_UNARY(Round, kRound)
KILN_UNARY(Trunc, kTrunc)
KILN_UNARY(Sqrt, kSqrt)
KILN_UNARY(Rsqrt, kRsqrt)
KILN_UNARY(Exp, kExp)
KILN_UNARY(Exp2, kExp2)
KILN_UNARY(Exp2Ftz, kExp2Ftz)
KILN_UNARY(Log, kLog)
KILN_UNARY(Log2, kLog2)
KILN_UNARY(Sin, kSin)
KILN_UNARY(Cos, kCos)
KILN_UNARY(Tanh, kTanh)
KILN_UNARY(Erf, kErf)
KILN_UNARY(Sigmoid, kSigmoid)
KILN_BINARY(Pow, kPow)
KILN_BINARY(DivFull, kDivFull)
KILN_UNARY(IsNan, kIsNan)
#undef KILN_UNARY
#undef KILN_BINARY

Expr CeilDiv(const Expr& a, const Expr& b) { return FloorDiv(a + b - 1, b); }
Expr Select(const Expr& condition, const Expr& a, const Expr& b) { return BuilderState::Apply(ExprOp::kSelect, {&condition, &a, &b}); }
Expr Masked(const Expr& condition, const Expr& element, const Expr& other) {
  return BuilderState::Apply(ExprOp::kMasked, {&condition, &element, &other});
}
Expr Fma(const Expr& a, const Expr& b, const Expr& c) { return BuilderState::Apply(ExprOp::kFma, {&a, &b, &c}); }
Expr Cast(DType dtype, const Expr& a) { return BuilderState::Convert(ExprOp::kCast, dtype, a); }
Expr Reinterpret(DType dtype, const Expr& a) { return BuilderState::Convert(ExprOp::kReinterpret, dtype, a); }

}  // namespace kiln
