// SPDX-License-Identifier: Apache-2.0
#include "ir/codec/op_codec.h"
#include "ir/op.h"

namespace kiln::ir {
namespace {

void WriteExprs(const std::vector<ExprId>& exprs, google::protobuf::RepeatedField<uint32_t>& out) {
  for (ExprId expr : exprs) out.Add(Index(expr));
}

void Write(const Region& region, v1::Region& out) {
  out.set_buffer(Index(region.buffer));
  WriteExprs(region.offsets, *out.mutable_offsets());
  out.mutable_extents()->Add(region.extents.begin(), region.extents.end());
}

class OpWriter {
 public:
  OpWriter(v1::Stmt& out, v1::DebugInfo& debug) : out_(out), debug_(debug) {}

  void operator()(const Alloc& op) { out_.mutable_alloc()->set_buffer(Index(op.buffer)); }
  void operator()(const For& op) {
    v1::For& out = *out_.mutable_for_loop();
    out.set_kind(v1::LoopKind(op.kind));
    for (VarId var : op.vars) out.add_vars(Index(var));
    WriteExprs(op.extents, *out.mutable_extents());
    out.set_num_stages(op.num_stages);
    out.set_coalesced_width(op.coalesced_width);
    WriteBlock(op.body, *out.mutable_body(), debug_);
  }
  void operator()(const If& op) {
    v1::If& out = *out_.mutable_if_then();
    out.set_cond(Index(op.cond));
    WriteBlock(op.then_body, *out.mutable_then_body(), debug_);
    WriteBlock(op.else_body, *out.mutable_else_body(), debug_);
  }
  void operator()(const While& op) {
    out_.mutable_while_loop()->set_cond(Index(op.cond));
    WriteBlock(op.body, *out_.mutable_while_loop()->mutable_body(), debug_);
  }
  void operator()(const Let& op) {
    out_.mutable_let()->set_var(Index(op.var));
    out_.mutable_let()->set_value(Index(op.value));
  }
  void operator()(const Store& op) {
    v1::Store& out = *out_.mutable_store();
    out.set_buffer(Index(op.buffer));
    WriteExprs(op.indices, *out.mutable_indices());
    out.set_value(Index(op.value));
  }
  void operator()(const Assume& op) { out_.mutable_assume()->set_cond(Index(op.cond)); }
  void operator()(const Copy& op) {
    v1::Copy& out = *out_.mutable_copy();
    Write(op.src, *out.mutable_src());
    Write(op.dst, *out.mutable_dst());
    out.set_coalesced_width(op.coalesced_width);
  }
  void operator()(const Gemm& op) {
    v1::Gemm& out = *out_.mutable_gemm();
    Write(op.a, *out.mutable_a());
    Write(op.b, *out.mutable_b());
    Write(op.c, *out.mutable_c());
    out.set_transpose_a(op.transpose_a);
    out.set_transpose_b(op.transpose_b);
    out.set_policy(v1::WarpPolicy(op.policy));
    out.set_clear_accum(op.clear_accum);
  }
  void operator()(const Fill& op) {
    Write(op.dst, *out_.mutable_fill()->mutable_dst());
    out_.mutable_fill()->set_value(Index(op.value));
  }
  void operator()(const Reduce& op) {
    v1::Reduce& out = *out_.mutable_reduce();
    out.set_kind(v1::ReduceKind(op.kind));
    Write(op.src, *out.mutable_src());
    Write(op.dst, *out.mutable_dst());
    out.set_dim(op.dim);
    out.set_clear(op.clear);
  }
  void operator()(const Atomic& op) {
    v1::Atomic& out = *out_.mutable_atomic();
    out.set_kind(v1::AtomicKind(op.kind));
    out.set_buffer(Index(op.buffer));
    WriteExprs(op.indices, *out.mutable_indices());
    out.set_value(Index(op.value));
  }
  void operator()(const Barrier&) { out_.mutable_barrier(); }
  void operator()(const Break&) { out_.mutable_break_loop(); }
  void operator()(const Continue&) { out_.mutable_continue_loop(); }
  void operator()(const AsyncCommit&) {}
  void operator()(const AsyncWait&) {}
  void operator()(const RingStep&) {}
  void operator()(const PairSum&) {}
  void operator()(const StreamSum&) {}

 private:
  v1::Stmt& out_;
  v1::DebugInfo& debug_;
};

}  // namespace

void WriteBlock(const Block& block, v1::Block& out, v1::DebugInfo& debug) {
  for (const Stmt& stmt : block) {
    if (WireNumber(stmt.op) == 0) continue;
    v1::Location& location = *debug.add_locations();
    location.set_file(stmt.loc.file);
    location.set_line(stmt.loc.line);
    std::visit(OpWriter(*out.add_stmts(), debug), stmt.op);
  }
}

}  // namespace kiln::ir
