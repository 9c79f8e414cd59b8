// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/degenerate.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "compiler/rewrite/versions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::ExprId;
using ir::ReduceKind;

bool IsEmpty(const ir::Region& region) { return std::ranges::count(region.extents, 0) > 0; }

// The result of a reduction of nothing: the value that changes no other when combined with it.
ExprId Identity(ir::Module& module, ReduceKind kind, ir::DType type) {
  const auto extreme = [&](bool lowest) {
    if (ir::IsFloat(type)) return module.exprs.Float((lowest ? -1 : 1) * std::numeric_limits<double>::infinity(), type);
    const bool is_signed = ir::IsSigned(type);
    const int64_t highest = type == ir::DType::kBool ? 1 : int64_t(~uint64_t{0} >> (64 - ir::Bits(type) + (is_signed ? 1 : 0)));
    return module.exprs.Int(!lowest ? highest : is_signed ? -highest - 1 : 0, type);
  };
  switch (kind) {
    case ReduceKind::kMax: return extreme(true);
    case ReduceKind::kMin: return extreme(false);
    case ReduceKind::kBitAnd: return ir::IsSigned(type) ? module.exprs.Int(-1, type) : extreme(false);
    default: return ir::IsFloat(type) ? module.exprs.Float(0, type) : module.exprs.Int(0, type);
  }
}

class Replacer {
 public:
  explicit Replacer(ir::Module& module) : module_(module) {}

  void Visit(Block& block) {
    Block result;
    for (ir::Stmt& stmt : block) {
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) Visit(loop->body);
      if (auto* loop = std::get_if<ir::While>(&stmt.op)) Visit(loop->body);
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) Visit(branch->then_body), Visit(branch->else_body);
      if (!WorksOnNothing(stmt.op)) {
        result.push_back(std::move(stmt));
      } else if (std::optional<ir::Fill> left = Left(stmt.op)) {
        result.push_back({std::move(*left), stmt.loc});
      }
    }
    block = std::move(result);
  }

 private:
  // Where a result is empty, so is an operand.
  static bool WorksOnNothing(const ir::Op& op) {
    bool empty = false;
    ir::ForEachRegion(op, [&](const ir::Region& region, ir::Use) { empty |= IsEmpty(region); });
    return empty;
  }

  // What an op does that works on nothing.
  std::optional<ir::Fill> Left(const ir::Op& op) {
    std::optional<ir::Fill> left;
    std::visit(ir::Overloaded{
                   [&](const ir::Reduce& reduce) {
                     if (reduce.clear && !IsEmpty(reduce.dst)) left = Cleared(reduce.dst, reduce.kind);
                   },
                   [&](const ir::Gemm& gemm) {
                     if (gemm.clear_accum && !IsEmpty(gemm.c)) left = Cleared(gemm.c, ReduceKind::kSum);
                   },
                   ir::Ignored<ir::Alloc, ir::For, ir::If, ir::While, ir::Let, ir::Store, ir::Assume, ir::Copy, ir::Mma, ir::Call, ir::AnyElementwise,
                               ir::Atomic, ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait,
                               ir::RingStep, ir::PairSum, ir::StreamSum>{},
               },
               op);
    return left;
  }
  ir::Fill Cleared(const ir::Region& dst, ReduceKind kind) { return {dst, Identity(module_, kind, module_[dst.buffer].dtype)}; }

  ir::Module& module_;
};

}  // namespace

void ReplaceDegenerate(ir::Module& module) {
  Replacer replacer(module);
  for (ir::Kernel& kernel : module.kernels) replacer.Visit(kernel.body);
  for (uint32_t id = 0; id < module.buffers.size(); ++id) {
    ir::Buffer& buffer = module.buffers[id];
    if (buffer.space == ir::Space::kGlobal || buffer.space == ir::Space::kBarrier) continue;
    for (ExprId& extent : buffer.shape)
      if (module.exprs.IsConst(extent, 0)) extent = module.exprs.Int(1);
    if (!buffer.shape.empty()) continue;
    module.buffers[id].shape = {module.exprs.Int(1)};
    for (ir::Kernel& kernel : module.kernels) UseVersion(module, kernel.body, ir::BufferId(id), module.exprs.Int(0));
  }
}

}  // namespace kiln::compiler
