// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/descriptors.h"

#include <algorithm>
#include <unordered_set>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/unrolled.h"
#include "compiler/rules/gemm.h"
#include "compiler/target/instructions.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {
namespace {

class Counter {
 public:
  explicit Counter(const KernelContext& context) : context_(context), module_(context.module()) {}

  int64_t Of(const ir::Block& body) {
    int64_t count = 0;
    for (const ir::Stmt& stmt : body) count += Of(stmt);
    return count;
  }

 private:
  int64_t Of(const ir::Stmt& stmt) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op); let != nullptr && Moves(let->value)) moving_.insert(let->var);
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) return Of(*gemm);
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const bool written_out = loop != nullptr && compiler::IsWrittenOut(module_, *loop, context_.request().max_unrolled());
    const bool repeats = (loop != nullptr && !written_out) || std::holds_alternative<ir::While>(stmt.op);
    if (loop != nullptr && !written_out) moving_.insert(loop->vars.begin(), loop->vars.end());
    loops_ += repeats;
    int64_t count = 0;
    ir::ForEachBody(stmt.op, [&](const ir::Block& inner) { count += Of(inner); });
    loops_ -= repeats;
    return written_out ? count * module_.exprs.ConstInt(loop->extents[0]).value_or(1) : count;
  }

  int64_t Of(const ir::Gemm& gemm) const {
    if (loops_ == 0 || gemm.plan->by_warps) return 0;
    const target::MmaInstruction& mma = RowOf(gemm, context_.target());
    if (!mma.IsByGroup()) return 0;
    const compiler::GemmShape shape = compiler::ShapeOf(gemm);
    const int64_t steps = shape.k / mma.k / gemm.plan->warps_k;
    return (Stands(gemm.a) ? shape.m / mma.m / gemm.plan->warps_m * steps : 0) + (Stands(gemm.b) ? shape.n / mma.n / gemm.plan->warps_n * steps : 0);
  }

  bool Stands(const ir::Region& region) const {
    return module_[region.buffer].space == ir::Space::kShared &&
           std::ranges::none_of(region.offsets, [&](ir::ExprId offset) { return Moves(offset); });
  }

  // What lies in memory may be another value in each iteration.
  bool Moves(ir::ExprId id) const {
    return compiler::Contains(module_.exprs, id, [&](ir::ExprId part) {
      const auto& node = module_.exprs[part];
      return node.op == ir::ExprOp::kLoad || (node.op == ir::ExprOp::kVar && moving_.contains(ir::VarId(node.ref)));
    });
  }

  const KernelContext& context_;
  const ir::Module& module_;
  std::unordered_set<ir::VarId> moving_;
  int loops_ = 0;
};

}  // namespace

int64_t StandingDescriptors(const KernelContext& context) { return Counter(context).Of(context.kernel().body); }

}  // namespace kiln::llvm_ir
