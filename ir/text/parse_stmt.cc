// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>
#include <type_traits>

#include "ir/fields.h"
#include "ir/limits.h"
#include "ir/text/parser.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

namespace kiln::ir {

Block Parser::ParseBlock() {
  Block block;
  Expect("{");
  if (++nesting_ > kMaxNesting) Fail(fmt::format("statements are nested deeper than {}", kMaxNesting), "merge loops, or split the kernel");
  while (!failed_ && !At("}") && token_.kind != Token::kEnd) {
    block.push_back(ParseStmt());
    Recover();
  }
  --nesting_;
  Expect("}");
  return block;
}

Stmt Parser::ParseStmt() {
  if (++stmts_ > kMaxStmts) Fail(fmt::format("more than {} statements", kMaxStmts), "use loops instead of unrolled statements");
  uint32_t line = token_.line;
  return {ParseAnyOp(), {0, line}};
}

// Reads each field of an op as FieldPrinter (print_stmt.cc) writes it.
class Parser::FieldParser {
 public:
  explicit FieldParser(Parser& parser) : parser_(parser) {}

  void Evaluates(ExprId& expr, std::string_view) { expr = parser_.ParseExpr(); }
  void Region(ir::Region& region, std::string_view, Use) { region = parser_.ParseRegion(); }
  void Element(BufferId& buffer, std::vector<ExprId>& indices, Use) {
    buffer = parser_.ParseBuffer();
    parser_.Expect("[");
    indices = parser_.ParseExprs("]");
  }
  void ElementIfAny(std::optional<ir::Element>& element, std::string_view) {
    if (parser_.Accept("->")) element.emplace(), Element(element->buffer, element->indices, Use::kWrite);
  }
  void EvaluatesIfAny(std::optional<ExprId>& expr, Label label) {
    if (parser_.Accept(label.word)) expr = parser_.ParseExpr();
  }
  void RegionIfAny(std::optional<ir::Region>& region, Label label) {
    if (parser_.Accept(label.word)) region = parser_.ParseRegion();
  }
  void Whole(BufferId& buffer, std::string_view, Use) { buffer = parser_.ParseBuffer(); }
  void Names(BufferId& buffer, std::string_view) { buffer = parser_.ParseBuffer(); }
  void Body(Block& block, std::string_view) { block = parser_.ParseBlock(); }
  void Says(std::string_view text) { parser_.Expect(text); }
  template <typename T>
  void Is(T& value, Label label) {
    if (label.word.empty() || parser_.Accept(label.word)) Read(value, label);
  }
  template <typename T>
  void Decided(T& value, std::string_view word) {
    if (parser_.Accept(word)) Read(value, {word, word});
  }
  void Uses(const auto&) {}  // stands in the decision that names it
  void Counts(size_t) {}
  // Ops that have these are read by functions of their own.
  void Declares(BufferId&, std::string_view) = delete;
  void Binds(VarId&, std::string_view) = delete;
  void Calls(FunctionId&, std::string_view) = delete;

 private:
  void Read(bool& flag, Label label) { flag = !label.where_false; }
  template <typename T>
    requires std::is_integral_v<T>
  void Read(T& value, Label label) {
    value = T(parser_.ParseInt(std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), label.name));
  }
  template <typename E>
    requires std::is_enum_v<E>
  void Read(E& value, Label) {
    value = parser_.ParseName<E>();
  }
  void Read(std::optional<BufferId>& buffer, Label) { buffer = parser_.ParseBuffer(); }
  void Read(std::optional<StorePlan>& plan, Label) { plan = parser_.ParseStorePlan(); }
  void Read(std::optional<CopyPlan>& plan, Label) { plan = parser_.ParseCopyPlan(); }
  void Read(std::optional<GemmPlan>& plan, Label) { plan = parser_.ParseGemmPlan(); }

  Parser& parser_;
};

template <typename T>
Op Parser::ParseOp() {
  T op{};
  Fields(op, FieldParser(*this));
  return op;
}

template <>
Op Parser::ParseOp<Alloc>() {
  Token name = token_;
  Advance();
  Expect("=");
  Expect("alloc");
  return Alloc{Declare(name, false)};
}

template <>
Op Parser::ParseOp<For>() {
  For op{.kind = ParseName<LoopKind>()};
  Token start = token_;
  List([&] {
    if (op.vars.size() >= size_t(kMaxRank)) Fail(fmt::format("more than {} loop variables", kMaxRank));
    op.vars.push_back(Bind(VarKind::kLoop));
  });
  Expect("in");
  List([&] {
    op.extents.push_back(ParseExpr());
    if (op.extents.size() > op.vars.size()) Fail("more extents than loop variables");
  });
  if (op.extents.size() < op.vars.size()) FailAt(start, fmt::format("{} loop variables and {} extents", op.vars.size(), op.extents.size()));
  if (Accept("stages")) op.num_stages = uint32_t(ParseInt(0, UINT32_MAX, "the number of stages"));
  if (Accept("coalesced")) op.coalesced_width = uint32_t(ParseInt(0, UINT32_MAX, "the number of elements"));
  if (Accept("layout")) op.layout = ParseLayout();
  op.body = ParseBlock();
  return op;
}

template <>
Op Parser::ParseOp<If>() {
  If op{.cond = ParseExpr()};
  op.then_threads = ParseThreads();
  op.then_body = ParseBlock();
  if (!Accept("else")) return op;
  op.else_threads = ParseThreads();
  op.else_body = ParseBlock();
  return op;
}

template <>
Op Parser::ParseOp<Let>() {
  Token name = token_;
  ExpectKind(Token::kValue, "a variable, as %x");
  Expect("=");
  ExprId value = ParseExpr();
  if (failed_) return Barrier{};
  return Let{BindNamed(name, VarKind::kLet, module_.exprs.Type(value), 0), value};
}

template <>
Op Parser::ParseOp<Call>() {
  Call op{.function = ParseCallee()};
  Expect("(");
  if (Accept(")")) return op;
  List([&] {
    if (op.arguments.size() >= kMaxArguments) Fail(fmt::format("a call with more than {} arguments", kMaxArguments));
    op.arguments.push_back(ParseArgument());
  });
  Expect(")");
  return op;
}

template <>
Op Parser::ParseOp<PairSum>() {
  PairSum op{ParseBuffer()};
  if (Accept("->")) {
    op.half = ParseBuffer();
    Expect("dim");
    op.dim = int32_t(ParseInt(INT32_MIN, INT32_MAX, "a dimension"));
  }
  if (Accept("scratch")) op.scratch = ParseBuffer();
  return op;
}

Op Parser::ParseAnyOp() {
  if (token_.kind == Token::kValue) return ParseOp<Alloc>();
  struct Row {
    std::string_view word;
    Op (Parser::*parse)();
  };
  static constexpr Row kRows[] = {
#define KILN_OP(number, type, name, family, since) {name, &Parser::ParseOp<type>},
#include "ir/ops.def"
  };
  for (const Row& row : kRows) {
    if (row.word != OpRow<Alloc>::kName && Accept(row.word)) return (this->*row.parse)();
  }
  Expected("a statement");
  return Barrier{};
}

std::optional<ThreadRange> Parser::ParseThreads() {
  if (!Accept("threads")) return std::nullopt;
  ThreadRange threads{.begin = uint32_t(ParseInt(0, kMaxThreads, "a thread"))};
  Expect("to");
  threads.end = uint32_t(ParseInt(0, kMaxThreads, "a thread"));
  if (Accept("barrier")) threads.barrier = uint32_t(ParseInt(1, kMaxNamedBarriers, "a barrier"));
  return threads;
}

BufferId Parser::ParseBuffer() {
  Token name = token_;
  ExpectKind(Token::kValue, "a buffer, as %A");
  auto it = entities_.find(name.text);
  if (it == entities_.end()) Undefined(name);
  else if (!it->second.is_buffer) FailAt(name, fmt::format("%{} is a variable, expected a buffer", name.text));
  return failed_ ? BufferId(0) : BufferId(it->second.index);
}

FunctionId Parser::ParseCallee() {
  const Token name = token_;
  ExpectKind(Token::kSymbol, "a function, as @f");
  const auto it = functions_.find(name.text);
  if (it == functions_.end()) FailAt(name, fmt::format("@{} is not defined", name.text));
  return failed_ ? FunctionId(0) : it->second;
}

// &%A[12], or an expression.
Argument Parser::ParseArgument() {
  if (!Accept("&")) return {.value = ParseExpr()};
  Argument argument{.buffer = ParseBuffer()};
  Expect("[");
  argument.value = ParseExpr();
  Expect("]");
  return argument;
}

StorePlan Parser::ParseStorePlan() {
  StorePlan plan;
  Expect("{");
  plan.form = ParseName<StoreForm>();
  if (plan.form == StoreForm::kVector) plan.width = int32_t(ParseInt(1, 16, "the elements of an access"));
  plan.parted = Accept("parted");
  plan.kept = Accept("kept");
  if (Accept("packed")) plan.packed = int32_t(ParseInt(2, 4, "the elements of a register"));
  if (Accept("loads")) List([&] { plan.loads.push_back(ParseLoadPlan()); });
  Expect("}");
  return plan;
}

LoadPlan Parser::ParseLoadPlan() {
  LoadPlan plan{.buffer = ParseBuffer()};
  plan.form = ParseName<LoadForm>();
  if (plan.form == LoadForm::kAcross) {
    plan.across = uint32_t(ParseInt(0, kMaxRank, "a loop variable's number"));
    Expect("by");
  }
  if (plan.form >= LoadForm::kVector) plan.width = int32_t(ParseInt(1, 16, "the elements of an access"));
  plan.once = Accept("once");
  return plan;
}

Region Parser::ParseRegion() {
  Token start = token_;
  Region region{.buffer = ParseBuffer()};
  Expect("[");
  region.offsets = ParseExprs(";");
  if (!Accept("]")) {
    region.extents = ParseInts(INT64_MIN, INT64_MAX, "an extent", size_t(kMaxRank));
    Expect("]");
  }
  if (region.offsets.size() != region.extents.size()) {
    FailAt(start, fmt::format("a region with {} offsets and {} extents", region.offsets.size(), region.extents.size()),
           "write one extent after ';' for each offset");
  }
  return region;
}

Ring Parser::ParseRing() {
  Ring ring{.barriers = ParseBuffer()};
  Expect("at");
  ring.position = ParseBuffer();
  return ring;
}

CopyPlan Parser::ParseCopyPlan() {
  CopyPlan plan;
  Expect("{");
  plan.instruction = ParseName<CopyInstruction>();
  Expect("vector");
  plan.vector = int32_t(ParseInt(1, 1024, "the elements of an access"));
  if (Accept("ring")) plan.ring = ParseRing();
  plan.multicast = Accept("multicast");
  plan.panels = Accept("panels");
  plan.adds = Accept("adds");
  if (Accept("groups")) {
    plan.groups_m = uint32_t(ParseInt(1, 64, "groups along the rows"));
    Expect("x");
    plan.groups_n = uint32_t(ParseInt(1, 64, "groups along the columns"));
  }
  if (Accept("layout")) plan.layout = ParseLayout();
  Expect("}");
  return plan;
}

GemmPlan Parser::ParseGemmPlan() {
  GemmPlan plan;
  Expect("{");
  plan.instruction = ExpectKind(Token::kWord, "an instruction");
  Expect("warps");
  plan.warps_m = int32_t(ParseInt(1, 64, "warps along m"));
  Expect("x");
  plan.warps_n = int32_t(ParseInt(1, 64, "warps along n"));
  if (Accept("x")) plan.warps_k = int32_t(ParseInt(1, 64, "warps along k"));
  plan.by_warps = Accept("by_warps");
  plan.in_flight = Accept("in_flight");
  plan.promoted = Accept("promoted");
  plan.as_sums = Accept("as_sums");
  Expect("}");
  return plan;
}

}  // namespace kiln::ir
