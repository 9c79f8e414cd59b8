// SPDX-License-Identifier: Apache-2.0
#include "ir/canonical.h"

#include <bit>

#include "ir/fields.h"
#include "ir/op.h"

namespace kiln::ir {
namespace {

// Every list is preceded by its length and every choice by a tag, so the bytes can be read in one way only.
class Writer {
 public:
  explicit Writer(const Module& module)
      : module_(module),
        vars_(module.vars.size()),
        buffers_(module.buffers.size()),
        functions_(module.functions.size()),
        exprs_(module.exprs.size()) {}

  std::string Run() {
    Put(uint64_t(5));  // of this format
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

  void Evaluates(ExprId id, std::string_view) { Put(id); }
  void Region(const ir::Region& region, std::string_view, Use) { Put(region); }
  void Element(BufferId buffer, const std::vector<ExprId>& indices, Use) {
    Put(buffer);
    List(indices);
  }
  void Whole(BufferId buffer, std::string_view, Use) { Put(buffer); }
  void Names(BufferId buffer, std::string_view) { Put(buffer); }
  void Uses(BufferId buffer) { Put(buffer); }
  void Declares(BufferId buffer, std::string_view) { Put(buffer); }
  void Binds(VarId var, std::string_view) { Put(var); }
  void Calls(FunctionId function, std::string_view) { Put(function); }
  void Body(const Block& block, std::string_view) { PutBlock(block); }
  void Is(const auto& value, Label) { Put(value); }
  void Decided(const auto& value, std::string_view) { Put(value); }
  void Counts(size_t items) { Put(uint64_t(items)); }
  void Says(std::string_view) {}  // the same for every statement of the op

 private:
  // LEB128.
  void Put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += char(value | 0x80);
    out_ += char(value);
  }
  template <typename E>
    requires std::is_enum_v<E>
  void Put(E value) {
    Put(uint64_t(value));
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) Put(*value);
  }
  void Put(const std::string& text) {
    Put(uint64_t(text.size()));
    out_ += text;
  }
  void Put(const View& view) {
    const auto& [of, positive] = view;
    Put(of);
    List(positive);
  }
  void Put(const Layout& layout) { Put(layout.ToString()); }
  // A field that is added to a plan fails to compile here.
  void Put(const CopyPlan& plan) {
    const auto& [instruction, vector, layout, ring, multicast, panels, adds, groups_m, groups_n] = plan;
    PutAll(instruction, vector, layout, ring, multicast, panels, adds, groups_m, groups_n);
  }
  void Put(const GemmPlan& plan) {
    const auto& [instruction, warps_m, warps_n, warps_k, in_flight, by_warps, promoted, as_sums] = plan;
    PutAll(instruction, warps_m, warps_n, warps_k, in_flight, by_warps, promoted, as_sums);
  }
  void Put(const LoadPlan& plan) {
    const auto& [buffer, form, width, across, once] = plan;
    PutAll(buffer, form, width, across, once);
  }
  void Put(const StorePlan& plan) {
    const auto& [form, width, parted, kept, packed, loads] = plan;
    PutAll(form, width, parted, kept, packed);
    List(loads);
  }
  void PutAll(const auto&... values) { (Put(values), ...); }
  void Put(const ThreadRange& threads) { PutAll(threads.begin, threads.end, threads.barrier); }
  void Put(const Ring& ring) {
    Put(ring.barriers);
    Put(ring.position);
  }
  void Put(const ir::Region& region) {
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
  // Writes the entity's number, counted from 1, if it was seen before; else 0, and its definition must follow.
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
    if (buffer.space == Space::kBarrier) List(buffer.arrivals);
    Put(buffer.layout);
    Put(uint64_t(buffer.shared_offset.value_or(-1)));
    Put(buffer.view);
  }
  void Put(FunctionId id) {
    if (Known(functions_[Index(id)], function_count_)) return;
    const Function& function = module_[id];
    Put(function.language);
    Put(function.symbol);
    Put(function.text);
  }
  void Put(ExprId id) {
    // Operands come first, both in the numbering and in the bytes.
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
      Fields(stmt.op, *this);
    }
  }

  const Module& module_;
  std::vector<uint32_t> vars_, buffers_, functions_, exprs_;  // numbers by first use
  uint32_t var_count_ = 0, buffer_count_ = 0, function_count_ = 0, expr_count_ = 0;
  std::string out_;
};

}  // namespace

std::string CanonicalBytes(const Module& module) { return Writer(module).Run(); }

}  // namespace kiln::ir
