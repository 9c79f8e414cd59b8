// SPDX-License-Identifier: Apache-2.0
#include "ir/text/print_expr.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "ir/expr/numeric.h"

namespace kiln::ir {
namespace {

template <typename Float>
std::string Shortest(Float value) {
  char digits[64];
  std::string text(digits, std::to_chars(digits, std::end(digits), value).ptr);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string IntText(DType type, int64_t value) {
  if (type == DType::kBool) return value != 0 ? "true" : "false";
  std::string digits = IsUnsigned(type) ? std::to_string(uint64_t(value)) : std::to_string(value);
  return type == DType::kI32 ? digits : fmt::format("{}:{}", digits, Name(type));
}

std::string ConstFloatText(DType type, double value) {
  std::string digits = FloatText(type, value);
  return type == DType::kF32 ? digits : fmt::format("{}:{}", digits, Name(type));
}

template <size_t n>
const Operator* Find(const Operator (&table)[n], ExprOp op) {
  for (const Operator& row : table) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

}  // namespace

std::string FloatText(DType type, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (type != DType::kF64) {
    std::string text = Shortest(float(value));
    double read = 0;
    std::from_chars(text.data(), text.data() + text.size(), read);
    if (RoundTo(type, read) == value) return text;
  }
  return Shortest(value);
}

std::string ExprPrinter::operator()(ExprId id) const {
  std::string out;
  Append(id, 0, out);
  return out;
}

std::string ExprPrinter::operator()(const std::vector<ExprId>& ids) const {
  std::string out;
  AppendList(ids, out);
  return out;
}

void ExprPrinter::AppendList(std::span<const ExprId> ids, std::string& out) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ", ";
    Append(ids[i], 0, out);
  }
}

bool ExprPrinter::AppendAtom(const ExprNode& node, std::string& out) const {
  switch (node.op) {
    case ExprOp::kConstInt: out += IntText(node.dtype, node.int_value); return true;
    case ExprOp::kConstFloat: out += ConstFloatText(node.dtype, node.FloatValue()); return true;
    case ExprOp::kVar: out += (*this)(VarId(node.ref)); return true;
    case ExprOp::kLoad: out += (*this)(BufferId(node.ref)) + "["; break;
    case ExprOp::kCast: out += fmt::format("{}(", Name(node.dtype)); break;
    case ExprOp::kReinterpret: out += fmt::format("reinterpret.{}(", Name(node.dtype)); break;
    default: return false;
  }
  AppendList(node.Args(), out);
  out += node.op == ExprOp::kLoad ? "]" : ")";
  return true;
}

void ExprPrinter::Append(ExprId id, int precedence, std::string& out) const {
  const ExprNode& node = module_.exprs[id];
  if (AppendAtom(node, out)) return;
  if (const Operator* op = Find(kInfix, node.op)) return AppendInfix(node, *op, precedence, out);
  if (const Operator* op = Find(kPrefix, node.op)) {
    out += op->text;  // never before digits: a negated constant is a constant
    return Append(node.args[0], kUnary, out);
  }
  out += fmt::format("{}(", Name(node.op));
  AppendList(node.Args(), out);
  out += ")";
}

void ExprPrinter::AppendInfix(const ExprNode& node, const Operator& op, int precedence, std::string& out) const {
  bool parenthesize = op.precedence < precedence;
  if (parenthesize) out += "(";
  Append(node.args[0], op.precedence == kComparison ? kComparison + 1 : op.precedence, out);
  const ExprNode& right = module_.exprs[node.args[1]];
  bool subtracts = node.op == ExprOp::kAdd && right.op == ExprOp::kConstInt && IsSigned(right.dtype) && right.int_value < 0 &&
                   right.int_value != MinOf(right.dtype);
  if (subtracts) {
    out += " - " + IntText(right.dtype, -right.int_value);
  } else {
    out += fmt::format(" {} ", op.text);
    Append(node.args[1], op.precedence + 1, out);
  }
  if (parenthesize) out += ")";
}

}  // namespace kiln::ir
