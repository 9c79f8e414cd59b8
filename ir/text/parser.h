// SPDX-License-Identifier: Apache-2.0
//
// The text form's recursive-descent parser: parse_expr.cc, parse_stmt.cc and parse.cc. After an error every method returns at once with a
// harmless value; callers need to check failed() only in loops. The parser resumes at the next line where a statement may start.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/enum_text.h"
#include "ir/expr/expr_size.h"
#include "ir/module.h"
#include "ir/op.h"
#include "ir/text/lexer.h"

namespace kiln::ir {

class Parser {
 public:
  Parser(std::string_view text, Diagnostics& diagnostics) : lexer_(text), diagnostics_(diagnostics), token_(lexer_.Next()) {}
  std::expected<Module, Failed> Run();

 private:
  // parse.cc
  void ParseHeader();
  void ParseParams();
  void ParseParam();
  void ParseOutputs();
  void ParseGlobal(bool workspace);  // a buffer of the function: workspace or scratch
  void ParseFunction();
  std::string ParseString();
  void ParseKernel();
  void ParseKernelClause(Kernel& kernel);

  bool failed() const { return failed_; }
  void Fail(std::string message, std::string hint = {}) { FailAt(token_, std::move(message), std::move(hint)); }
  void FailAt(const Token& token, std::string message, std::string hint = {});
  void Undefined(const Token& name);
  // Resumes after the line of the last error, and reports no further unknown names from that line. Skips the blocks that start there; with
  // `blocks_follow` the caller still reads the first of them.
  void Recover(bool blocks_follow = false);
  void Expected(std::string_view what);
  void Advance() {
    line_ = token_.line;
    token_ = failed_ ? Token{} : lexer_.Next();
  }
  bool At(std::string_view text) const;
  bool Accept(std::string_view text);
  void Expect(std::string_view text);
  std::string_view ExpectKind(Token::Kind kind, std::string_view what);
  int64_t ParseInt(int64_t least, int64_t most, std::string_view what);  // a literal, perhaps negative
  std::vector<int64_t> ParseInts(int64_t least, int64_t most, std::string_view what, size_t limit);
  // Runs `item` for each of a list's items.
  template <typename Item>
  void List(Item&& item) {
    do item();
    while (!failed_ && Accept(","));
  }

  VarId Bind(VarKind kind, std::optional<DType> dtype = {}, uint8_t axis = 0);  // %name or %name: dtype
  VarId BindNamed(const Token& name, VarKind kind, DType dtype, uint8_t axis);
  BufferId Declare(const Token& name, bool workspace);  // space dtype[shape] clauses
  DType ParseDType();
  Layout ParseLayout();  // after "layout"
  double ParsePlainFloat();

  // parse_stmt.cc
  Block ParseBlock();  // { … }
  Stmt ParseStmt();
  Op ParseAnyOp();
  template <typename T>
  Op ParseOp();  // what follows the op's name
  class FieldParser;
  std::optional<ThreadRange> ParseThreads();  // that come to a branch
  Ring ParseRing();
  Region ParseRegion();
  BufferId ParseBuffer();
  FunctionId ParseCallee();
  Argument ParseArgument();
  StorePlan ParseStorePlan();
  LoadPlan ParseLoadPlan();
  CopyPlan ParseCopyPlan();
  GemmPlan ParseGemmPlan();
  template <typename E>
  E ParseName();  // of a value, as ir/enum_text.h has it

  // parse_expr.cc
  ExprId ParseExpr(int precedence = 0);
  std::vector<ExprId> ParseExprs(std::string_view close);  // up to `close`, which is taken
  ExprId ParseOperand();
  ExprId ParseValue();
  ExprId ParseWord();
  ExprId ParseCall(const Token& name);
  ExprId ParseNumber(bool negative);
  ExprId ParseInteger(const Token& number, bool negative, DType dtype);
  ExprId ParseFloat(const Token& number, bool negative, DType dtype);
  std::optional<DType> ParseSuffix();
  ExprId Build(const Token& at, ExprOp op, std::optional<DType> dtype, const std::vector<ExprId>& args);

  struct Entity {
    bool is_buffer;
    uint32_t index;
  };

  Lexer lexer_;
  Diagnostics& diagnostics_;
  Token token_;
  bool failed_ = false;  // and not recovered
  uint32_t line_ = 0;    // of the last token taken
  Token beyond_;         // the next token when the last error was found
  uint32_t wrong_line_ = 0;
  std::set<std::string, std::less<>> doubtful_;  // names whose definition may be on a line that is wrong
  Module module_;
  ExprSizes sizes_{module_.exprs};
  std::map<std::string, Entity, std::less<>> entities_;
  std::map<std::string, FunctionId, std::less<>> functions_;  // by name
  int nesting_ = 0;
  int depth_ = 0;  // of the expression being read
  size_t stmts_ = 0;
};

template <typename E>
E Parser::ParseName() {
  std::string known;
  for (size_t i = 0; i < std::size(EnumText<E>::names); ++i) {
    const E value = E(size_t(EnumText<E>::first) + i);
    if (Accept(Name(value))) return value;
    known += (known.empty() ? "" : ", ") + std::string(Name(value));
  }
  Expected(fmt::format("{} ({})", EnumText<E>::what, known));
  return EnumText<E>::first;
}

}  // namespace kiln::ir
