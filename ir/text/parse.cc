// SPDX-License-Identifier: Apache-2.0
#include "ir/text/parse.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

#include "ir/limits.h"
#include "ir/text/parser.h"

namespace kiln::ir {

void Parser::FailAt(const Token& token, std::string message, std::string hint) {
  if (failed_) return;
  failed_ = true;
  diagnostics_.Error(fmt::format("column {}: {}", token.column, message), std::move(hint), {0, token.line}, std::string(lexer_.Line(token.line)));
  wrong_line_ = token.line;
  beyond_ = std::exchange(token_, {});
}

void Parser::Undefined(const Token& name) {
  if (!doubtful_.contains(name.text)) return FailAt(name, fmt::format("%{} is not defined", name.text));
  failed_ = true;
  wrong_line_ = name.line;
  beyond_ = std::exchange(token_, {});
}

void Parser::Recover(bool blocks_follow) {
  if (!failed_ || beyond_.kind == Token::kEnd || diagnostics_.errors() >= Diagnostics::kMax) return;
  Lexer whole(lexer_.Line(wrong_line_));
  for (Token token = whole.Next(); token.kind != Token::kEnd; token = whole.Next())
    if (token.kind == Token::kValue) doubtful_.emplace(token.text);
  failed_ = false;
  token_ = beyond_;
  for (line_ = wrong_line_; !failed_ && token_.kind != Token::kEnd && token_.line == line_ && !At("}");) {
    if (!At("{")) {
      Advance();
    } else if (blocks_follow) {
      return;
    } else {
      ParseBlock();
    }
  }
}

void Parser::Expected(std::string_view what) { Fail(fmt::format("expected {}, found {}", what, Describe(token_))); }

bool Parser::At(std::string_view text) const {
  return !failed_ && (token_.kind == Token::kWord || token_.kind == Token::kPunct) && token_.text == text;
}

bool Parser::Accept(std::string_view text) {
  if (!At(text)) return false;
  Advance();
  return true;
}

void Parser::Expect(std::string_view text) {
  if (!Accept(text)) Expected(fmt::format("'{}'", text));
}

std::string_view Parser::ExpectKind(Token::Kind kind, std::string_view what) {
  std::string_view text = token_.text;
  if (token_.kind != kind) Expected(what);
  Advance();
  return failed_ ? "" : text;
}

int64_t Parser::ParseInt(int64_t least, int64_t most, std::string_view what) {
  Token start = token_;
  bool negative = Accept("-");
  std::string_view digits = ExpectKind(Token::kNumber, what);
  uint64_t magnitude = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude);
  bool whole = error == std::errc() && end == digits.data() + digits.size() && magnitude <= uint64_t(INT64_MAX) + negative;
  int64_t value = int64_t(negative ? -magnitude : magnitude);
  if (failed_ || !whole || value < least || value > most) {
    FailAt(start, fmt::format("expected {}, a whole number from {} to {}", what, least, most));
    return least;
  }
  return value;
}

std::vector<int64_t> Parser::ParseInts(int64_t least, int64_t most, std::string_view what, size_t limit) {
  std::vector<int64_t> values;
  List([&] {
    values.push_back(ParseInt(least, most, what));
    if (values.size() > limit) Fail(fmt::format("more than {} of {}", limit, what));
  });
  return values;
}

DType Parser::ParseDType() {
  Token token = token_;
  std::optional<DType> type = DTypeFromName(ExpectKind(Token::kWord, "a dtype, as f16"));
  if (!type) FailAt(token, fmt::format("{} is no dtype", Describe(token)), "dtypes are bool, i8, u32, f16, bf16, tf32, f8e4m3 and so on");
  return type.value_or(DType::kI32);
}

double Parser::ParsePlainFloat() {
  bool negative = Accept("-");
  double value = 0;
  if (Accept("inf")) value = std::numeric_limits<double>::infinity();
  else if (Accept("nan")) value = std::numeric_limits<double>::quiet_NaN();
  else {
    std::string_view digits = ExpectKind(Token::kNumber, "a number");
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
  }
  return negative ? -value : value;
}

Layout Parser::ParseLayout() {
  Token start = token_;
  if (!At("(")) {
    Expected("'('");
    return {};
  }
  std::string_view text = lexer_.UntilClosed();  // the parenthesis itself is already taken from the lexer
  std::optional<Layout> layout = Layout::Parse(text);
  if (!layout) FailAt(start, "this is no layout", "a layout reads [2r1 4t1 8r4][8t4] rep[2t32] swizzle(3,4,3)");
  Advance();
  return layout.value_or(Layout());
}

VarId Parser::Bind(VarKind kind, std::optional<DType> dtype, uint8_t axis) {
  Token name = token_;
  ExpectKind(Token::kValue, "a variable, as %i");
  if (!dtype) dtype = Accept(":") ? ParseDType() : DType::kI32;
  return failed_ ? VarId(0) : BindNamed(name, kind, *dtype, axis);
}

VarId Parser::BindNamed(const Token& name, VarKind kind, DType dtype, uint8_t axis) {
  auto [it, is_new] = entities_.try_emplace(std::string(name.text), Entity{false, uint32_t(module_.vars.size())});
  if (is_new) {
    if (module_.vars.size() >= kMaxVars) FailAt(name, fmt::format("more than {} variables", kMaxVars));
    return module_.AddVar({kind, dtype, axis, std::string(name.text)});
  }
  // Several loops may bind one variable; the verifier checks that they do not overlap.
  VarId var{it->second.index};
  bool rebound = !it->second.is_buffer && module_[var].kind == kind && module_[var].dtype == dtype && module_[var].axis == axis &&
                 kind != VarKind::kSymbol && kind != VarKind::kScalar;
  if (!rebound) FailAt(name, fmt::format("%{} is already defined as something else", name.text), "give it another name");
  return var;
}

BufferId Parser::Declare(const Token& name, bool workspace) {
  Buffer buffer{.workspace = workspace, .name = std::string(name.text)};
  Token word = token_;
  std::optional<Space> space = SpaceFromName(ExpectKind(Token::kWord, "a space: global, shared, fragment, local or barrier"));
  if (!space) FailAt(word, fmt::format("{} is no space", Describe(word)), "spaces are global, shared, fragment, local and barrier");
  buffer.space = space.value_or(Space::kGlobal);
  buffer.dtype = ParseDType();
  Expect("[");
  buffer.shape = ParseExprs("]");
  while (!failed_) {
    if (Accept("strides")) {
      Expect("(");
      buffer.strides = ParseExprs(")");
    } else if (Accept("pad")) {
      Expect("(");
      buffer.pad_value = ParsePlainFloat();
      Expect(")");
    } else if (Accept("may_alias")) buffer.may_alias = true;
    else if (Accept("arrivals")) {
      Expect("(");
      for (const int64_t count : ParseInts(0, UINT32_MAX, "how many arrive", kMaxBarriers)) buffer.arrivals.push_back(uint32_t(count));
      Expect(")");
    } else if (Accept("layout")) buffer.layout = ParseLayout();
    else if (Accept("offset")) {
      Expect("(");
      buffer.shared_offset = ParseInt(0, INT32_MAX, "an offset");
      Expect(")");
    } else if (Accept("of")) {
      Expect("(");
      buffer.view = View{ParseBuffer(), {}};
      Expect(")");
      if (!Accept("positive")) continue;
      Expect("(");
      buffer.view->positive = ParseExprs(")");
    } else break;
  }
  if (failed_) return BufferId(0);
  bool is_new = entities_.try_emplace(std::string(name.text), Entity{true, uint32_t(module_.buffers.size())}).second;
  if (!is_new) FailAt(name, fmt::format("%{} is already defined", name.text), "give it another name");
  if (module_.buffers.size() >= kMaxBuffers) FailAt(name, fmt::format("more than {} buffers", kMaxBuffers));
  return module_.AddBuffer(std::move(buffer));
}

void Parser::ParseHeader() {
  Expect("kiln");
  Token version = token_;
  if (int64_t number = ParseInt(1, INT32_MAX, "the text form's version"); number > 1) {
    FailAt(version, fmt::format("the text form's version is {}, this compiler knows 1", number), "update the compiler");
  }
  if (failed_) beyond_ = {};  // what follows may be anything
  Expect("func");
  module_.name = ExpectKind(Token::kSymbol, "the function's name, as @gemm");
  if (Accept("[")) {
    List([&] { Bind(VarKind::kSymbol); });
    Expect("]");
  }
  ParseParams();
  if (Accept("outputs")) ParseOutputs();
  if (Accept("thread")) {
    Expect("(");
    List([&] { Bind(VarKind::kThread); });
    Expect(")");
  }
}

void Parser::ParseParams() {
  Expect("(");
  if (Accept(")")) return;
  List([&] { ParseParam(); });
  Expect(")");
}

void Parser::ParseParam() {
  Token name = token_;
  ExpectKind(Token::kValue, "a parameter, as %A");
  Expect(":");
  if (module_.params.size() >= kMaxParams) Fail(fmt::format("more than {} parameters", kMaxParams));
  bool is_scalar = token_.kind == Token::kWord && DTypeFromName(token_.text).has_value();
  if (is_scalar) module_.params.push_back(BindNamed(name, VarKind::kScalar, ParseDType(), 0));
  else module_.params.push_back(Declare(name, false));
}

void Parser::ParseOutputs() {
  Expect("(");
  int64_t last = int64_t(module_.params.size()) - 1;
  for (int64_t index : ParseInts(0, last, "the index of a parameter", kMaxParams)) module_.outputs.push_back(uint32_t(index));
  Expect(")");
}

void Parser::ParseGlobal(bool workspace) {
  Token name = token_;
  ExpectKind(Token::kValue, "a buffer, as %W");
  Expect(":");
  Declare(name, workspace);
}

// @f llvm "symbol" { "a line of its text" … }
void Parser::ParseFunction() {
  const Token name = token_;
  ExpectKind(Token::kSymbol, "the function's name, as @f");
  Function function{.language = ParseName<Language>()};
  function.symbol = ParseString();
  Expect("{");
  for (bool first = true; !failed_ && token_.kind == Token::kString; first = false) {
    if (!first) function.text += '\n';
    function.text += ParseString();
  }
  Expect("}");
  if (module_.functions.size() >= kMaxFunctions) Fail(fmt::format("more than {} functions", kMaxFunctions));
  if (!functions_.emplace(name.text, FunctionId(module_.functions.size())).second) FailAt(name, fmt::format("@{} is defined twice", name.text));
  module_.functions.push_back(std::move(function));
}

std::string Parser::ParseString() {
  const Token token = token_;
  std::optional<std::string> value = Unescaped(ExpectKind(Token::kString, "a text between quotes"));
  if (!value && !failed_) {  // the lines behind it can be read
    diagnostics_.Error(fmt::format("column {}: a \\ in a text before something else than \\, \" and x with two hexadecimal digits", token.column), {},
                       {0, token.line}, std::string(lexer_.Line(token.line)));
  }
  return std::move(value).value_or("");
}

void Parser::ParseKernel() {
  Kernel kernel;
  kernel.name = ExpectKind(Token::kSymbol, "the kernel's name, as @main");
  Expect("grid");
  Expect("(");
  kernel.grid = ParseExprs(")");
  Expect("threads");
  kernel.threads = uint32_t(ParseInt(0, UINT32_MAX, "the number of threads"));
  while (!failed_ && !At("blocks")) ParseKernelClause(kernel);
  Expect("blocks");
  Expect("(");
  if (!Accept(")")) {
    List([&] {
      if (kernel.block_vars.size() >= 3) Fail("a grid has at most 3 dimensions");
      kernel.block_vars.push_back(Bind(VarKind::kBlock, {}, uint8_t(kernel.block_vars.size())));
    });
    Expect(")");
  }
  kernel.body = ParseBlock();
  if (module_.kernels.size() >= kMaxKernels) Fail(fmt::format("more than {} kernels", kMaxKernels));
  module_.kernels.push_back(std::move(kernel));
}

void Parser::ParseKernelClause(Kernel& kernel) {
  if (Accept("cluster")) {
    Expect("(");
    for (int64_t size : ParseInts(0, UINT32_MAX, "cluster sizes", 3)) kernel.cluster.push_back(uint32_t(size));
    Expect(")");
  } else if (Accept("raster")) {
    kernel.raster_panel = uint32_t(ParseInt(0, UINT32_MAX, "the rows of a panel"));
  } else if (Accept("min_blocks")) {
    kernel.min_blocks = uint32_t(ParseInt(0, UINT32_MAX, "the blocks of a multiprocessor"));
  } else if (Accept("shared_bytes")) {
    kernel.shared_bytes = ParseInt(0, INT32_MAX, "the bytes of shared memory");
  } else if (Accept("producers")) {
    kernel.producers = uint32_t(ParseInt(0, UINT32_MAX, "the number of threads"));
  } else if (Accept("tried_blocks")) {
    kernel.tried_blocks = uint32_t(ParseInt(0, UINT32_MAX, "the blocks of a multiprocessor"));
  } else {
    Expected("cluster, raster, min_blocks, shared_bytes, producers, tried_blocks or blocks");
  }
}

std::expected<Module, Failed> Parser::Run() {
  module_.files.push_back("<text>");
  ParseHeader();
  Recover(/*blocks_follow=*/true);
  Expect("{");
  while (Accept("function")) ParseFunction(), Recover();
  while (Accept("workspace")) ParseGlobal(true), Recover();
  while (Accept("view")) ParseGlobal(false), Recover();
  while (Accept("scratch")) ParseGlobal(false), Recover();
  while (Accept("kernel")) ParseKernel(), Recover();
  if (!At("}")) Expected("kernel or '}'");
  Advance();
  if (token_.kind != Token::kEnd) Expected("the end of the text");
  if (diagnostics_.HasErrors()) return std::unexpected(Failed{});
  return std::move(module_);
}

std::expected<Module, Failed> Parse(std::string_view text, Diagnostics& diagnostics) {
  if (text.size() > kMaxModuleBytes) {
    diagnostics.Error(fmt::format("the text has {} bytes; at most {} are read", text.size(), kMaxModuleBytes),
                      "use loops instead of unrolled statements");
    return std::unexpected(Failed{});
  }
  return Parser(text, diagnostics).Run();
}

}  // namespace kiln::ir
