// SPDX-License-Identifier: Apache-2.0
#include "ir/canonical.h"

#include <bit>

namespace kiln::ir {
namespace {

// Every list is preceded by its length and every choice by a tag, so the bytes can be read in one way only.
class Writer {
 public:
  explicit Writer(const Module& module)
      : module_(module), vars_(module.vars.size()), buffers_(module.buffers.size()), exprs_(module.exprs.size()) {}

  std::string Run() {
    Put(1);  // of this format
    Put(module_.params.size());
    for (const Param& param : module_.params) {
      Put(param.index());
      std::visit([this](auto id) { Put(id); }, param);
    }
    List(module_.outputs);
    Put(module_.kernels.size());
    for (const Kernel& kernel : module_.kernels) PutKernel(kernel);
    return std::move(out_);
  }

  void operator()(const Alloc& op) { Put(op.buffer); }
  void operator()(const For& op) {
    Put(op.kind);
    List(op.vars);
    List(op.extents);
    Put(op.num_stages);
    Put(op.coalesced_width);
    Put(op.layout);
    PutBlock(op.body);
  }
  void operator()(const If& op) {
    Put(op.cond);
    Put(op.then_threads);
    PutBlock(op.then_body);
    Put(op.else_threads);
    PutBlock(op.else_body);
  }
  void operator()(const While& op) {
    Put(op.cond);
    PutBlock(op.body);
  }
  void operator()(const Let& op) {
    Put(op.value);
    Put(op.var);
  }
  void operator()(const Store& op) { PutElement(op); }
  void operator()(const Assume& op) { Put(op.cond); }
  void operator()(const Copy& op) {
    Put(op.src);
    Put(op.dst);
    Put(op.coalesced_width);
    Put(op.plan.has_value());
    if (!op.plan) return;
    Put(op.plan->instruction);
    Put(uint64_t(op.plan->vector));
    Put(op.plan->layout);
    Put(op.plan->ring.has_value());
    if (op.plan->ring) Put(*op.plan->ring);
    Put(op.plan->multicast);
    Put(op.plan->panels);
    Put(uint64_t(op.plan->groups_m));
    Put(uint64_t(op.plan->groups_n));
  }
  void operator()(const Gemm& op) {
    Put(op.a);
    Put(op.b);
    Put(op.c);
    Put(op.transpose_a);
    Put(op.transpose_b);
    Put(op.policy);
    Put(op.clear_accum);
    Put(op.plan.has_value());
    if (!op.plan) return;
    Put(op.plan->instruction);
    Put(uint64_t(op.plan->warps_m));
    Put(uint64_t(op.plan->warps_n));
    Put(uint64_t(op.plan->warps_k));
    Put(op.plan->by_warps);
    Put(op.plan->in_flight);
    Put(op.plan->promoted);
  }
  void operator()(const Fill& op) {
    Put(op.dst);
    Put(op.value);
  }
  void operator()(const Reduce& op) {
    Put(op.kind);
    Put(op.src);
    Put(op.dst);
    Put(uint64_t(op.dim));
    Put(op.clear);
    Put(op.scratch.has_value());
    if (op.scratch) Put(*op.scratch);
    Put(op.cluster);
  }
  void operator()(const Atomic& op) {
    Put(op.kind);
    PutElement(op);
  }
  void operator()(const Barrier& op) { Put(op.by_group); }
  void operator()(const Break&) {}
  void operator()(const Continue&) {}
  void operator()(const AsyncCommit&) {}
  void operator()(const AsyncWait& op) {
    Put(uint64_t(op.pending));
    Put(op.stores);
    Put(op.product.has_value());
    if (op.product) Put(*op.product);
  }
  void operator()(const RingStep& op) {
    Put(op.action);
    Put(op.ring);
    Put(uint64_t(op.bytes));
    Put(uint64_t(op.behind));
  }
  void operator()(const PairSum& op) {
    Put(op.sum);
    Put(op.half.has_value());
    if (op.half) Put(*op.half), Put(uint64_t(op.dim));
    Put(op.scratch.has_value());
    if (op.scratch) Put(*op.scratch);
  }
  void operator()(const StreamSum& op) {
    Put(op.sum);
    Put(op.partials);
    Put(op.flags);
    Put(op.block);
    Put(op.owns);
    Put(op.parts);
  }

 private:
  // LEB128.
  void Put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += char(value | 0x80);
    out_ += char(value);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void Put(E value) { Put(uint64_t(value)); }
  void Put(const std::string& text) {
    Put(uint64_t(text.size()));
    out_ += text;
  }
  void Put(const std::optional<Layout>& layout) { Put(layout ? layout->ToString() : std::string()); }
  void Put(const std::optional<ThreadRange>& threads) {
    Put(threads.has_value());
    if (!threads) return;
    Put(uint64_t(threads->begin));
    Put(uint64_t(threads->end));
    Put(uint64_t(threads->barrier));
  }
  void Put(const Ring& ring) {
    Put(ring.barriers);
    Put(ring.position);
  }
  void Put(const Region& region) {
    Put(region.buffer);
    List(region.offsets);
    Put(region.extents.size());
    for (int64_t extent : region.extents) Put(uint64_t(extent));
  }
  template <typename T>
  void List(const std::vector<T>& items) {
    Put(uint64_t(items.size()));
    for (const T& item : items) Put(item);
  }
  template <typename Access>
  void PutElement(const Access& op) {
    Put(op.buffer);
    List(op.indices);
    Put(op.value);
  }

  // A number counted from 1 where the entity was seen before; else 0, and its definition must follow.
  bool Known(uint32_t& number, uint32_t& count) {
    Put(uint64_t(number));
    if (number != 0) return true;
    number = ++count;
    return false;
  }

  void Put(VarId id) {
    if (Known(vars_[Index(id)], var_count_)) return;
    const Var& var = module_[id];
    Put(var.kind);
    Put(var.dtype);
    Put(uint64_t(var.axis));
  }
  void Put(BufferId id) {
    if (Known(buffers_[Index(id)], buffer_count_)) return;
    const Buffer& buffer = module_[id];
    Put(buffer.space);
    Put(buffer.dtype);
    List(buffer.shape);
    List(buffer.strides);
    Put(buffer.workspace);
    Put(buffer.pad_value.has_value());
    if (buffer.pad_value) Put(std::bit_cast<uint64_t>(*buffer.pad_value));
    Put(buffer.may_alias);
    Put(buffer.layout);
    Put(uint64_t(buffer.shared_offset.value_or(-1)));
  }
  void Put(ExprId id) {
    // Numbered after its operands, as it is written after them.
    if (uint32_t number = exprs_[Index(id)]; number != 0) return Put(uint64_t(number));
    Put(uint64_t(0));
    const ExprNode& node = module_.exprs[id];
    Put(node.op);
    Put(node.dtype);
    if (node.op == ExprOp::kVar) Put(VarId{node.ref});
    if (node.op == ExprOp::kLoad) Put(BufferId{node.ref});
    Put(uint64_t(node.int_value));
    Put(uint64_t(node.arg_count));
    for (ExprId arg : node.Args()) Put(arg);
    exprs_[Index(id)] = ++expr_count_;
  }

  void PutKernel(const Kernel& kernel) {
    List(kernel.grid);
    Put(uint64_t(kernel.threads));
    List(kernel.cluster);
    List(kernel.block_vars);
    Put(uint64_t(kernel.raster_panel));
    Put(uint64_t(kernel.min_blocks));
    Put(uint64_t(kernel.shared_bytes));
    Put(uint64_t(kernel.producers));
    PutBlock(kernel.body);
  }
  void PutBlock(const Block& block) {
    Put(uint64_t(block.size()));
    for (const Stmt& stmt : block) {
      Put(uint64_t(stmt.op.index()));
      std::visit(*this, stmt.op);
    }
  }

  const Module& module_;
  std::vector<uint32_t> vars_, buffers_, exprs_;  // numbers by first use
  uint32_t var_count_ = 0, buffer_count_ = 0, expr_count_ = 0;
  std::string out_;
};

}  // namespace

std::string CanonicalBytes(const Module& module) { return Writer(module).Run(); }

}  // namespace kiln::ir
