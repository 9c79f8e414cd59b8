// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <google/protobuf/unknown_field_set.h>

#include <utility>

#include "ir/codec/decode.h"
#include "ir/codec/op_codec.h"
#include "ir/limits.h"
#include "ir/op.h"

namespace kiln::ir {
namespace {

// A name from the wire, cut down to what may be shown.
std::string Shown(std::string_view name) {
  std::string shown;
  for (char c : name.substr(0, 40)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

}  // namespace

std::string OpReader::Placed(std::string_view message) const {
  if (op_name_.empty()) return fmt::format("{}[{}]: {}", table_, index_, message);
  return fmt::format("{}[{}], statement {} ({}): {}", table_, index_, stmts_, op_name_, message);
}

void OpReader::Problem(std::string message, std::string hint) { diagnostics_.Error(Placed(message), std::move(hint), loc_); }

void OpReader::Newer(std::string message) { diagnostics_.Unsupported(Placed(message), "update the daemon, or use a client of its version", loc_); }

void OpReader::RefuseUnknownFields(const google::protobuf::Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count() && i < 4; ++i) {
    Newer(fmt::format("field {} of {} is newer than this compiler, whose format is version {}", unknown.field(i).number(),
                      std::string_view(message.GetDescriptor()->name()), kFormatVersion));
  }
}

ExprId OpReader::Expr(uint32_t index, std::string_view what) {
  if (index < exprs_.size()) {
    uint64_t before = std::exchange(written_, written_ + sizes_.Of(exprs_[index]).nodes);
    if (before <= kMaxWritten && written_ > kMaxWritten) {
      Problem(fmt::format("the expressions written out have more than {} nodes", kMaxWritten), "bind parts of them with let");
    }
    return exprs_[index];
  }
  Problem(fmt::format("{} is expression {}, but the module has {}", what, index, exprs_.size()));
  return ExprId(0);
}

std::vector<ExprId> OpReader::Exprs(const google::protobuf::RepeatedField<uint32_t>& indices, std::string_view what) {
  std::vector<ExprId> result;
  if (indices.size() > kMaxRank) {
    Problem(fmt::format("{} {}; at most {} are possible", indices.size(), what, kMaxRank));
    return result;
  }
  for (uint32_t index : indices) result.push_back(Expr(index, what));
  return result;
}

BufferId OpReader::Buffer(uint32_t index, std::string_view what) {
  if (index < module_.buffers.size()) return BufferId(index);
  Problem(fmt::format("{} is buffer {}, but the module has {}", what, index, module_.buffers.size()));
  return BufferId(0);
}

VarId OpReader::Var(uint32_t index, std::string_view what) {
  if (index < module_.vars.size()) return VarId(index);
  Problem(fmt::format("{} is variable {}, but the module has {}", what, index, module_.vars.size()));
  return VarId(0);
}

template <typename T>
T OpReader::Enum(int number, T first, T last, std::string_view what) {
  if (number >= int(first) && number <= int(last)) return T(number);
  if (number == 0) Problem(fmt::format("{} is not given", what));
  else Newer(fmt::format("{} {} is not known here", what, number));
  return first;
}

SourceLoc OpReader::NextLocation() {
  const v1::DebugInfo& debug = wire_.debug();
  size_t index = stmts_++;
  if (index >= size_t(debug.locations_size())) return {};
  const v1::Location& location = debug.locations(int(index));
  if (location.file() >= module_.files.size()) return {};
  return {location.file(), location.line()};
}

Block OpReader::ReadBlock(const v1::Block& block) {
  RefuseUnknownFields(block);
  Block result;
  if (depth_ >= kMaxNesting) {
    Problem(fmt::format("statements are nested deeper than {}", kMaxNesting), "merge loops, or split the kernel");
    return result;
  }
  if (stmts_ + size_t(block.stmts_size()) > kMaxStmts) {
    Problem(fmt::format("more than {} statements", kMaxStmts), "use loops instead of unrolling in the front end");
    return result;
  }
  ++depth_;
  result.reserve(size_t(block.stmts_size()));
  for (const v1::Stmt& stmt : block.stmts()) result.push_back(ReadStmt(stmt));
  --depth_;
  return result;
}

Stmt OpReader::ReadStmt(const v1::Stmt& stmt) {
  std::string_view outer = op_name_;
  SourceLoc outer_loc = loc_;
  SourceLoc loc = loc_ = NextLocation();
  Stmt result{ReadOp(stmt), loc};
  op_name_ = outer;
  loc_ = outer_loc;
  return result;
}

Op OpReader::ReadOp(const v1::Stmt& stmt) {
  auto named = [this](std::string_view name, const auto& op) {
    op_name_ = name;
    RefuseUnknownFields(op);
  };
  auto read = [&](std::string_view name, const auto& op) {
    named(name, op);
    return Read(op);
  };
  switch (stmt.op_case()) {
    case v1::Stmt::kAlloc: return read("alloc", stmt.alloc());
    case v1::Stmt::kForLoop: return read("for", stmt.for_loop());
    case v1::Stmt::kIfThen: return read("if", stmt.if_then());
    case v1::Stmt::kWhileLoop: return read("while", stmt.while_loop());
    case v1::Stmt::kLet: return read("let", stmt.let());
    case v1::Stmt::kStore: return read("store", stmt.store());
    case v1::Stmt::kAssume: return read("assume", stmt.assume());
    case v1::Stmt::kCopy: return read("copy", stmt.copy());
    case v1::Stmt::kGemm: return read("gemm", stmt.gemm());
    case v1::Stmt::kFill: return read("fill", stmt.fill());
    case v1::Stmt::kReduce: return read("reduce", stmt.reduce());
    case v1::Stmt::kAtomic: return read("atomic", stmt.atomic());
    case v1::Stmt::kBarrier: named("barrier", stmt.barrier()); return Barrier{};
    case v1::Stmt::kBreakLoop: named("break", stmt.break_loop()); return Break{};
    case v1::Stmt::kContinueLoop: named("continue", stmt.continue_loop()); return Continue{};
    case v1::Stmt::OP_NOT_SET: break;
  }
  return UnknownOp(stmt);
}

Op OpReader::UnknownOp(const v1::Stmt& stmt) {
  op_name_ = {};
  const auto& unknown = stmt.GetReflection()->GetUnknownFields(stmt);
  if (unknown.empty()) {
    Problem(fmt::format("statement {} is empty", stmts_));
    return Barrier{};
  }
  uint32_t number = uint32_t(unknown.field(0).number());
  auto name = wire_.op_names().find(number);
  std::string shown = name == wire_.op_names().end() ? "without a name" : fmt::format("'{}'", Shown(name->second));
  Newer(
      fmt::format("statement {}: op {} (number {}) is newer than this compiler, whose format is version {}", stmts_, shown, number, kFormatVersion));
  return Barrier{};
}

Region OpReader::ReadRegion(bool present, const v1::Region& region, std::string_view what) {
  if (!present) {
    Problem(fmt::format("{} is not given", what));
    return {};
  }
  RefuseUnknownFields(region);
  Region result{Buffer(region.buffer(), what), Exprs(region.offsets(), "offsets"), {}};
  if (region.offsets_size() != region.extents_size()) {
    Problem(fmt::format("{} has {} offsets and {} extents", what, region.offsets_size(), region.extents_size()));
    return {};
  }
  result.extents.assign(region.extents().begin(), region.extents().end());
  return result;
}

Op OpReader::Read(const v1::Alloc& op) { return Alloc{Buffer(op.buffer(), "the buffer")}; }

Op OpReader::Read(const v1::For& op) {
  For result{.kind = Enum(op.kind(), LoopKind::kSerial, LoopKind::kPersistent, "loop kind")};
  if (op.vars_size() != op.extents_size() || op.vars_size() == 0 || op.vars_size() > kMaxRank) {
    Problem(fmt::format("{} variables and {} extents; a loop has 1 to {} of each", op.vars_size(), op.extents_size(), kMaxRank));
    return Barrier{};
  }
  for (uint32_t var : op.vars()) result.vars.push_back(Var(var, "the loop variable"));
  result.extents = Exprs(op.extents(), "extents");
  result.num_stages = op.num_stages();
  result.coalesced_width = op.coalesced_width();
  result.body = ReadBlock(op.body());
  return result;
}

Op OpReader::Read(const v1::If& op) {
  If result{.cond = Expr(op.cond(), "the condition")};
  result.then_body = ReadBlock(op.then_body());
  result.else_body = ReadBlock(op.else_body());
  return result;
}

Op OpReader::Read(const v1::While& op) {
  While result{.cond = Expr(op.cond(), "the condition")};
  result.body = ReadBlock(op.body());
  return result;
}

Op OpReader::Read(const v1::Let& op) { return Let{Var(op.var(), "the variable"), Expr(op.value(), "the value")}; }

Op OpReader::Read(const v1::Store& op) {
  return Store{Buffer(op.buffer(), "the buffer"), Exprs(op.indices(), "indices"), Expr(op.value(), "the value")};
}

Op OpReader::Read(const v1::Assume& op) { return Assume{Expr(op.cond(), "the condition")}; }

Op OpReader::Read(const v1::Copy& op) {
  return Copy{ReadRegion(op.has_src(), op.src(), "src"), ReadRegion(op.has_dst(), op.dst(), "dst"), op.coalesced_width(), {}};
}

Op OpReader::Read(const v1::Gemm& op) {
  return Gemm{ReadRegion(op.has_a(), op.a(), "a"),
              ReadRegion(op.has_b(), op.b(), "b"),
              ReadRegion(op.has_c(), op.c(), "c"),
              op.transpose_a(),
              op.transpose_b(),
              Enum(op.policy(), WarpPolicy::kSquare, WarpPolicy::kFullCol, "warp policy"),
              op.clear_accum(),
              {}};
}

Op OpReader::Read(const v1::Fill& op) { return Fill{ReadRegion(op.has_dst(), op.dst(), "dst"), Expr(op.value(), "the value")}; }

Op OpReader::Read(const v1::Reduce& op) {
  return Reduce{Enum(op.kind(), ReduceKind::kSum, ReduceKind::kBitXor, "reduce kind"), ReadRegion(op.has_src(), op.src(), "src"),
                ReadRegion(op.has_dst(), op.dst(), "dst"), op.dim(), op.clear()};
}

Op OpReader::Read(const v1::Atomic& op) {
  return Atomic{Enum(op.kind(), AtomicKind::kAdd, AtomicKind::kMin, "atomic kind"), Buffer(op.buffer(), "the buffer"), Exprs(op.indices(), "indices"),
                Expr(op.value(), "the value")};
}

}  // namespace kiln::ir
