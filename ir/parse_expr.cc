// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "ir/limits.h"
#include "ir/numeric.h"
#include "ir/parser.h"
#include "ir/print_expr.h"

namespace kiln::ir {
namespace {

const Operator* FindOperator(std::span<const Operator> table, const Token& token) {
  if (token.kind != Token::kPunct) return nullptr;
  for (const Operator& row : table) {
    if (row.text == token.text) return &row;
  }
  return nullptr;
}

bool IsWhole(std::string_view digits) { return digits.find_first_not_of("0123456789") == std::string_view::npos; }

}  // namespace

ExprId Parser::Build(const Token& at, ExprOp op, std::optional<DType> dtype, const std::vector<ExprId>& args) {
  if (failed_) return ExprId(0);
  TypeRule rule = RuleOf(op);
  bool gives_bool = rule == TypeRule::compare || rule == TypeRule::predicate || rule == TypeRule::logic || rule == TypeRule::negation;
  if (!dtype) dtype = gives_bool ? DType::kBool : module_.exprs.Type(args[Chooses(op) ? 1 : 0]);
  ExprNode node{.op = op, .dtype = *dtype, .arg_count = uint8_t(args.size())};
  std::copy(args.begin(), args.end(), node.args.begin());
  if (std::string problem = TypeProblem(module_.exprs, node); !problem.empty()) {
    FailAt(at, std::move(problem), "convert an operand, as f32(%x)");
    return ExprId(0);
  }
  ExprId id = module_.exprs.Simplified(node);
  ExprSize size = sizes_.Of(id);
  if (size.depth > kMaxExprDepth || size.nodes > kMaxExprNodes) {
    FailAt(at,
           fmt::format("the expression is {} deep and has {} nodes; the limits are {} and {}", size.depth, size.nodes, kMaxExprDepth, kMaxExprNodes),
           "bind parts of it with let");
  }
  return id;
}

ExprId Parser::ParseExpr(int precedence) {
  // An operand in parentheses is two levels.
  if (++depth_ > 2 * int(kMaxExprDepth) + 2) Fail(fmt::format("an expression nested deeper than {}", kMaxExprDepth), "bind parts of it with let");
  if (module_.exprs.size() > kMaxExprs) Fail(fmt::format("more than {} expressions", kMaxExprs), "use loops instead of unrolled statements");
  ExprId left = ParseOperand();
  for (bool compared = false; !failed_;) {
    const Operator* op = FindOperator(kInfix, token_);
    if (op == nullptr || op->precedence < precedence) break;
    if (op->precedence == kComparison && std::exchange(compared, true)) Fail("comparisons do not chain", "use parentheses");
    Token at = token_;
    Advance();
    ExprId right = ParseExpr(op->precedence + 1);
    left = Build(at, op->op, {}, {left, right});
  }
  --depth_;
  return left;
}

std::vector<ExprId> Parser::ParseExprs(std::string_view close) {
  std::vector<ExprId> result;
  if (Accept(close)) return result;
  List([&] {
    result.push_back(ParseExpr());
    if (result.size() > size_t(kMaxRank)) Fail(fmt::format("more than {} dimensions", kMaxRank));
  });
  Expect(close);
  return result;
}

ExprId Parser::ParseOperand() {
  Token at = token_;
  if (Accept("(")) {
    ExprId inner = ParseExpr();
    Expect(")");
    return inner;
  }
  if (const Operator* op = FindOperator(kPrefix, token_)) {
    Advance();
    bool number = token_.kind == Token::kNumber || At("inf") || At("nan");
    if (op->op == ExprOp::kNeg && number) return ParseNumber(true);
    return Build(at, op->op, {}, {ParseExpr(kUnary)});
  }
  switch (token_.kind) {
    case Token::kNumber: return ParseNumber(false);
    case Token::kValue: return ParseValue();
    case Token::kWord: return ParseWord();
    default: Expected("an expression"); return ExprId(0);
  }
}

ExprId Parser::ParseValue() {
  Token name = token_;
  auto it = entities_.find(name.text);
  if (it == entities_.end()) {
    Undefined(name);
    return ExprId(0);
  }
  Advance();
  Entity entity = it->second;
  if (!entity.is_buffer) return module_.VarRef(VarId(entity.index));
  Expect("[");
  std::vector<ExprId> indices = ParseExprs("]");
  if (failed_) return ExprId(0);
  ExprId load = module_.exprs.Load(BufferId(entity.index), module_[BufferId(entity.index)].dtype, indices);
  std::string problem = TypeProblem(module_.exprs, module_.exprs[load]);
  if (!problem.empty()) FailAt(name, std::move(problem));
  return load;
}

ExprId Parser::ParseWord() {
  if (Accept("true")) return module_.exprs.Bool(true);
  if (Accept("false")) return module_.exprs.Bool(false);
  if (At("inf") || At("nan")) return ParseNumber(false);
  Token name = token_;
  Advance();
  return ParseCall(name);
}

ExprId Parser::ParseCall(const Token& name) {
  constexpr std::string_view kReinterpret = "reinterpret.";
  std::optional<ExprOp> op = ExprOpFromName(name.text);
  std::optional<DType> dtype = DTypeFromName(name.text);
  if (dtype) op = ExprOp::kCast;
  if (name.text.starts_with(kReinterpret)) {
    dtype = DTypeFromName(name.text.substr(kReinterpret.size()));
    op = ExprOp::kReinterpret;
  }
  bool callable = op && ArgCount(*op) > 0 && (RuleOf(*op) == TypeRule::cast) == dtype.has_value();
  if (!callable) {
    FailAt(name, fmt::format("{} is no operation or dtype", Describe(name)), "a variable is written with '%'");
    return ExprId(0);
  }
  Expect("(");
  std::vector<ExprId> args = ParseExprs(")");
  if (int(args.size()) != ArgCount(*op)) {
    FailAt(name, fmt::format("{} takes {} operands, {} are given", Describe(name), ArgCount(*op), args.size()));
  }
  return Build(name, *op, dtype, args);
}

std::optional<DType> Parser::ParseSuffix() {
  if (!Accept(":")) return std::nullopt;
  return ParseDType();
}

ExprId Parser::ParseNumber(bool negative) {
  Token number = token_;
  Advance();
  bool whole = IsWhole(number.text);
  DType dtype = ParseSuffix().value_or(whole ? DType::kI32 : DType::kF32);
  if (failed_) return ExprId(0);
  if (IsFloat(dtype)) return ParseFloat(number, negative, dtype);
  if (!whole || dtype == DType::kBool) {
    FailAt(number, fmt::format("{} is no value of type {}", Describe(number), Name(dtype)));
    return ExprId(0);
  }
  return ParseInteger(number, negative, dtype);
}

ExprId Parser::ParseInteger(const Token& number, bool negative, DType dtype) {
  uint64_t magnitude = 0;
  std::errc error = std::from_chars(number.text.data(), number.text.data() + number.text.size(), magnitude).ec;
  uint64_t most = uint64_t(MaxOf(dtype));
  if (negative) most = IsSigned(dtype) ? most + 1 : 0;
  if (error != std::errc() || magnitude > most) {
    FailAt(number, fmt::format("{}{} does not fit {}", negative ? "-" : "", number.text.substr(0, 40), Name(dtype)),
           "say a wider type after a colon, as 1:i64");
    return ExprId(0);
  }
  return module_.exprs.Int(int64_t(negative ? -magnitude : magnitude), dtype);
}

ExprId Parser::ParseFloat(const Token& number, bool negative, DType dtype) {
  double value = 0;
  if (number.text == "inf") value = std::numeric_limits<double>::infinity();
  else if (number.text == "nan") value = std::numeric_limits<double>::quiet_NaN();
  else {
    auto error = std::from_chars(number.text.data(), number.text.data() + number.text.size(), value).ec;
    if (error != std::errc()) FailAt(number, fmt::format("{} is beyond a double's range", Describe(number)), "write inf or 0.0");
  }
  return failed_ ? ExprId(0) : module_.exprs.Float(negative ? -value : value, dtype);
}

}  // namespace kiln::ir
