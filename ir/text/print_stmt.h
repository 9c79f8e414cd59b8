// SPDX-License-Identifier: Apache-2.0
//
// Statements in the text form, without their bodies. Where nothing else is said in print_stmt.cc, an op is written as ir/fields.h tells it.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "ir/module.h"
#include "ir/text/print_expr.h"

namespace kiln::ir {

template <typename T>
std::string Joined(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

class StmtPrinter {
 public:
  StmtPrinter(const ExprPrinter& exprs, const Module& module) : exprs_(exprs), module_(module) {}

  std::string operator()(const Op& op) const;

  // "shared f16[128, 32] pad(1.0) layout(...)"
  std::string Type(const Buffer& buffer) const;
  // " threads 0 to 64 barrier 15"
  static std::string Clause(const std::optional<ThreadRange>& threads);
  // "@f0"
  static std::string Callee(FunctionId function) { return fmt::format("@f{}", Index(function)); }
  // "%k", with its type where that is not i32.
  std::string Declared(VarId var) const;

 private:
  template <typename T>
  std::string Text(const T& op) const;
  std::string Text(const Alloc& op) const;
  std::string Text(const For& op) const;
  std::string Text(const If& op) const;
  std::string Text(const Let& op) const;
  std::string Text(const PairSum& op) const;
  std::string Text(const Call& op) const;
  class FieldPrinter;

  const ExprPrinter& exprs_;
  const Module& module_;
};

}  // namespace kiln::ir
