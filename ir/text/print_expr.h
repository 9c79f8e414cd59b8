// SPDX-License-Identifier: Apache-2.0
//
// Expressions in the text form: infix with the fewest parentheses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/text/print.h"

namespace kiln::ir {

// How an operation is written between or before its operands. Higher binds tighter; all infix operators associate to
// the left, except comparisons, which do not chain.
struct Operator {
  ExprOp op;
  std::string_view text;
  int precedence;
};
inline constexpr Operator kInfix[] = {
    {ExprOp::kOr, "||", 1},    {ExprOp::kAnd, "&&", 2},      {ExprOp::kEq, "==", 3},  {ExprOp::kNe, "!=", 3},   {ExprOp::kLe, "<=", 3},
    {ExprOp::kGe, ">=", 3},    {ExprOp::kLt, "<", 3},        {ExprOp::kGt, ">", 3},   {ExprOp::kBitOr, "|", 4}, {ExprOp::kBitXor, "^", 5},
    {ExprOp::kBitAnd, "&", 6}, {ExprOp::kShl, "<<", 7},      {ExprOp::kShr, ">>", 7}, {ExprOp::kAdd, "+", 8},   {ExprOp::kSub, "-", 8},
    {ExprOp::kMul, "*", 9},    {ExprOp::kFloorDiv, "//", 9}, {ExprOp::kDiv, "/", 9},
};
inline constexpr Operator kPrefix[] = {{ExprOp::kNeg, "-", 10}, {ExprOp::kNot, "!", 10}, {ExprOp::kBitNot, "~", 10}};
inline constexpr int kComparison = 3;
inline constexpr int kUnary = 10;

// The shortest digits that give `value` back when they are read as a double and rounded to `type`; "inf", "-inf",
// "nan".
std::string FloatText(DType type, double value);

class ExprPrinter {
 public:
  ExprPrinter(const Module& module, const Names& names) : module_(module), names_(names) {}
  std::string operator()(ExprId id) const;
  std::string operator()(const std::vector<ExprId>& ids) const;  // separated by commas
  std::string operator()(VarId id) const { return "%" + names_.Of(id); }
  std::string operator()(BufferId id) const { return "%" + names_.Of(id); }

 private:
  // Appends `id`, in parentheses where it binds less than `precedence`.
  void Append(ExprId id, int precedence, std::string& out) const;
  void AppendInfix(const ExprNode& node, const Operator& op, int precedence, std::string& out) const;
  void AppendList(std::span<const ExprId> ids, std::string& out) const;
  bool AppendAtom(const ExprNode& node, std::string& out) const;

  const Module& module_;
  const Names& names_;
};

}  // namespace kiln::ir
