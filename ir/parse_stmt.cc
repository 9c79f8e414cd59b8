// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/limits.h"
#include "ir/op.h"
#include "ir/parser.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace kiln::ir {
namespace {

constexpr LoopKind kLoopKinds[] = {LoopKind::kSerial,     LoopKind::kUnroll,    LoopKind::kParallel,
                                   LoopKind::kVectorized, LoopKind::kPipelined, LoopKind::kPersistent};
constexpr WarpPolicy kPolicies[] = {WarpPolicy::kSquare, WarpPolicy::kFullRow, WarpPolicy::kFullCol};
constexpr ReduceKind kReduceKinds[] = {ReduceKind::kSum,    ReduceKind::kMax,    ReduceKind::kMin,   ReduceKind::kAbsMax,
                                       ReduceKind::kAbsSum, ReduceKind::kBitAnd, ReduceKind::kBitOr, ReduceKind::kBitXor};
constexpr AtomicKind kAtomicKinds[] = {AtomicKind::kAdd, AtomicKind::kMax, AtomicKind::kMin};
constexpr CopyInstruction kCopyInstructions[] = {CopyInstruction::kDirect, CopyInstruction::kAsync, CopyInstruction::kTensor};
constexpr LoadForm kLoadForms[] = {LoadForm::kEach, LoadForm::kSame, LoadForm::kVector, LoadForm::kAcross, LoadForm::kGathered};
constexpr StoreForm kStoreForms[] = {StoreForm::kRegisters, StoreForm::kVector, StoreForm::kMatrix, StoreForm::kTransposed};
constexpr RingAction kRingActions[] = {RingAction::kAcquire, RingAction::kWait, RingAction::kRelease, RingAction::kAdvance};

}  // namespace

template <typename T, size_t n>
T Parser::ParseName(const T (&values)[n], std::string_view what) {
  std::string known;
  for (T value : values) {
    if (Accept(Name(value))) return value;
    known += (known.empty() ? "" : ", ") + std::string(Name(value));
  }
  Expected(fmt::format("{} ({})", what, known));
  return values[0];
}

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
  return {ParseOp(), {0, line}};
}

Op Parser::ParseOp() {
  if (token_.kind == Token::kValue) return ParseAlloc();
  struct Row {
    std::string_view word;
    Op (Parser::*parse)();
  };
  static constexpr Row kRows[] = {{"for", &Parser::ParseFor},
                                  {"if", &Parser::ParseIf},
                                  {"while", &Parser::ParseWhile},
                                  {"let", &Parser::ParseLet},
                                  {"store", &Parser::ParseStore},
                                  {"assume", &Parser::ParseAssume},
                                  {"copy", &Parser::ParseCopy},
                                  {"gemm", &Parser::ParseGemm},
                                  {"fill", &Parser::ParseFill},
                                  {"reduce", &Parser::ParseReduce},
                                  {"atomic", &Parser::ParseAtomic},
                                  {"async_wait", &Parser::ParseAsyncWait},
                                  {"ring", &Parser::ParseRingStep},
                                  {"pair_sum", &Parser::ParsePairSum},
                                  {"stream_sum", &Parser::ParseStreamSum}};
  for (const Row& row : kRows) {
    if (Accept(row.word)) return (this->*row.parse)();
  }
  if (Accept("barrier")) return Barrier{Accept("groups")};
  if (Accept("break")) return Break{};
  if (Accept("continue")) return Continue{};
  if (Accept("async_commit")) return AsyncCommit{};
  Expected("a statement");
  return Barrier{};
}

Op Parser::ParseAlloc() {
  Token name = token_;
  Advance();
  Expect("=");
  Expect("alloc");
  return Alloc{Declare(name, false)};
}

Op Parser::ParseFor() {
  For op{.kind = ParseName(kLoopKinds, "a loop kind")};
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

Op Parser::ParseIf() {
  If op{.cond = ParseExpr()};
  op.then_threads = ParseThreads();
  op.then_body = ParseBlock();
  if (!Accept("else")) return op;
  op.else_threads = ParseThreads();
  op.else_body = ParseBlock();
  return op;
}

std::optional<ThreadRange> Parser::ParseThreads() {
  if (!Accept("threads")) return std::nullopt;
  ThreadRange threads{.begin = uint32_t(ParseInt(0, kMaxThreads, "a thread"))};
  Expect("to");
  threads.end = uint32_t(ParseInt(0, kMaxThreads, "a thread"));
  if (Accept("barrier")) threads.barrier = uint32_t(ParseInt(1, kMaxNamedBarriers, "a barrier"));
  return threads;
}

Op Parser::ParseWhile() {
  While op{.cond = ParseExpr()};
  op.body = ParseBlock();
  return op;
}

Op Parser::ParseLet() {
  Token name = token_;
  ExpectKind(Token::kValue, "a variable, as %x");
  Expect("=");
  ExprId value = ParseExpr();
  if (failed_) return Barrier{};
  return Let{BindNamed(name, VarKind::kLet, module_.exprs.Type(value), 0), value};
}

BufferId Parser::ParseBuffer() {
  Token name = token_;
  ExpectKind(Token::kValue, "a buffer, as %A");
  auto it = entities_.find(name.text);
  if (it == entities_.end()) Undefined(name);
  else if (!it->second.is_buffer) FailAt(name, fmt::format("%{} is a variable, expected a buffer", name.text));
  return failed_ ? BufferId(0) : BufferId(it->second.index);
}

Op Parser::ParseStore() {
  Store op{.buffer = ParseBuffer()};
  Expect("[");
  op.indices = ParseExprs("]");
  Expect("=");
  op.value = ParseExpr();
  op.async = Accept("async");
  if (Accept("plan")) op.plan = ParseStorePlan();
  return op;
}

StorePlan Parser::ParseStorePlan() {
  StorePlan plan;
  Expect("{");
  plan.form = ParseName(kStoreForms, "how to store");
  if (plan.form == StoreForm::kVector) plan.width = int32_t(ParseInt(1, 16, "the elements of an access"));
  plan.kept = Accept("kept");
  if (Accept("packed")) plan.packed = int32_t(ParseInt(2, 4, "the elements of a register"));
  if (Accept("loads")) List([&] { plan.loads.push_back(ParseLoadPlan()); });
  Expect("}");
  return plan;
}

LoadPlan Parser::ParseLoadPlan() {
  LoadPlan plan{.buffer = ParseBuffer()};
  plan.form = ParseName(kLoadForms, "how to load");
  if (plan.form == LoadForm::kAcross) {
    plan.across = uint32_t(ParseInt(0, kMaxRank, "a loop variable's number"));
    Expect("by");
  }
  if (plan.form >= LoadForm::kVector) plan.width = int32_t(ParseInt(1, 16, "the elements of an access"));
  plan.once = Accept("once");
  return plan;
}

Op Parser::ParseAssume() { return Assume{ParseExpr()}; }

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

Op Parser::ParseCopy() {
  Copy op{.src = ParseRegion()};
  Expect("->");
  op.dst = ParseRegion();
  if (Accept("coalesced")) op.coalesced_width = uint32_t(ParseInt(0, UINT32_MAX, "the number of elements"));
  if (Accept("plan")) op.plan = ParseCopyPlan();
  return op;
}

CopyPlan Parser::ParseCopyPlan() {
  CopyPlan plan;
  Expect("{");
  plan.instruction = ParseName(kCopyInstructions, "how to copy");
  Expect("vector");
  plan.vector = int32_t(ParseInt(1, 1024, "the elements of an access"));
  if (Accept("ring")) plan.ring = ParseRing();
  plan.multicast = Accept("multicast");
  plan.panels = Accept("panels");
  if (Accept("groups")) {
    plan.groups_m = uint32_t(ParseInt(1, 64, "groups along the rows"));
    Expect("x");
    plan.groups_n = uint32_t(ParseInt(1, 64, "groups along the columns"));
  }
  if (Accept("layout")) plan.layout = ParseLayout();
  Expect("}");
  return plan;
}

Op Parser::ParseGemm() {
  Gemm op{.a = ParseRegion()};
  Expect(",");
  op.b = ParseRegion();
  Expect("->");
  op.c = ParseRegion();
  op.transpose_a = Accept("transpose_a");
  op.transpose_b = Accept("transpose_b");
  if (Accept("policy")) op.policy = ParseName(kPolicies, "a policy");
  op.clear_accum = Accept("clear");
  if (Accept("plan")) op.plan = ParseGemmPlan();
  return op;
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
  Expect("}");
  return plan;
}

Op Parser::ParseFill() {
  Fill op{.dst = ParseRegion()};
  Expect("=");
  op.value = ParseExpr();
  return op;
}

Op Parser::ParseReduce() {
  Reduce op{.kind = ParseName(kReduceKinds, "a reduction")};
  op.src = ParseRegion();
  Expect("->");
  op.dst = ParseRegion();
  Expect("dim");
  op.dim = int32_t(ParseInt(INT32_MIN, INT32_MAX, "a dimension"));
  op.clear = !Accept("accumulate");
  if (Accept("scratch")) op.scratch = ParseBuffer();
  op.cluster = Accept("cluster");
  return op;
}

Op Parser::ParseAtomic() {
  Atomic op{.kind = ParseName(kAtomicKinds, "an atomic operation"), .buffer = ParseBuffer()};
  Expect("[");
  op.indices = ParseExprs("]");
  Expect("=");
  op.value = ParseExpr();
  return op;
}

Op Parser::ParseAsyncWait() {
  AsyncWait op{int32_t(ParseInt(0, 1024, "the pending groups"))};
  op.stores = Accept("stores");
  if (Accept("product")) op.product = ParseBuffer();
  return op;
}

Ring Parser::ParseRing() {
  Ring ring{.barriers = ParseBuffer()};
  Expect("at");
  ring.position = ParseBuffer();
  return ring;
}

Op Parser::ParsePairSum() {
  PairSum op{ParseBuffer()};
  if (Accept("->")) {
    op.half = ParseBuffer();
    Expect("dim");
    op.dim = int32_t(ParseInt(INT32_MIN, INT32_MAX, "a dimension"));
  }
  if (Accept("scratch")) op.scratch = ParseBuffer();
  return op;
}

Op Parser::ParseStreamSum() {
  StreamSum op{.sum = ParseBuffer()};
  Expect("partials");
  op.partials = ParseBuffer();
  Expect("flags");
  op.flags = ParseBuffer();
  Expect("block");
  op.block = ParseExpr();
  Expect("owns");
  op.owns = ParseExpr();
  Expect("parts");
  op.parts = ParseExpr();
  return op;
}

Op Parser::ParseRingStep() {
  RingStep op{.action = ParseName(kRingActions, "a step of a ring"), .ring = ParseRing()};
  if (Accept("bytes")) op.bytes = ParseInt(0, INT32_MAX, "the bytes of a stage");
  if (Accept("behind")) op.behind = int32_t(ParseInt(0, 64, "steps of a ring"));
  return op;
}

}  // namespace kiln::ir
