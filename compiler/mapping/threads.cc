// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/threads.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/memory_runs.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/analysis/threads/walk_together.h"
#include "compiler/mapping/crossed_loop.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

class Binder {
 public:
  Binder(ir::Module& module, const Context& context) : module_(module), context_(context) {}

  void Run(ir::Kernel& kernel) {
    WalkTogether(module_, kernel, [this](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange& threads) {
      threads_ = threads;
      Bind(stmt, facts);
    });
  }

 private:
  void Bind(ir::Stmt& stmt, const Facts& facts) {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    if (copy != nullptr && !(copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor)) stmt.op = BindCopy(*copy);
    auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr) return;
    SplitLong(*loop);
    if (loop->kind != ir::LoopKind::kParallel || loop->layout) return;
    Facts inner = facts;
    inner.EnterLoop(*loop);
    loop->layout = LoopLayout(stmt, inner);
  }

  // A parallel loop is unrolled over a thread's elements. A loop that gives a thread more elements than this becomes a serial loop around a
  // parallel one. Loops that touch fragments are bounded by the registers.
  static constexpr int64_t kMaxElements = 256;

  void SplitLong(ir::For& loop) {
    if (loop.kind != ir::LoopKind::kParallel || loop.layout) return;
    std::vector<int64_t> extents = ExtentsOf(module_, loop);
    const int64_t inner = std::accumulate(extents.begin() + 1, extents.end(), int64_t{1}, std::multiplies<>());
    const int64_t most = std::max<int64_t>(1, kMaxElements * threads_.Count() / std::max<int64_t>(1, inner));
    if (extents[0] <= most) return;
    int64_t chunk = most;
    while (chunk > most / 2 && extents[0] % chunk != 0) --chunk;
    const bool ragged = extents[0] % chunk != 0;
    if (ragged) chunk = most;
    // v0 = outer · chunk + inner
    const ir::DType type = module_[loop.vars[0]].dtype;
    const auto fresh = [&] { return FreshVar(module_, ir::VarKind::kLoop, type, "p"); };
    const ir::VarId outer = fresh(), part = fresh();
    ir::ExprPool& pool = module_.exprs;
    const ir::ExprId index = pool.Add(pool.Mul(module_.VarRef(outer), pool.Int(chunk, type)), module_.VarRef(part));
    Substitute(module_, loop.body, loop.vars[0], index);
    if (ragged) {
      const ir::ExprId inside = pool.Make(ir::ExprOp::kLt, {index, pool.Int(extents[0], type)});
      ir::Block body;
      body.push_back({ir::If{inside, std::move(loop.body), {}}, {}});
      loop.body = std::move(body);
    }
    ir::For parallel = std::move(loop);
    parallel.vars[0] = part;
    parallel.extents[0] = pool.Int(chunk, type);
    const ir::ExprId count = pool.Int((extents[0] + chunk - 1) / chunk, type);
    loop = {ir::LoopKind::kSerial, {outer}, {count}, {}};
    loop.body.push_back({std::move(parallel), {}});
  }

  ir::For BindCopy(const ir::Copy& copy) {
    ir::For loop = CopyLoop(module_, copy);
    if (copy.plan && copy.plan->instruction == ir::CopyInstruction::kAsync) {
      loop.layout = ir::Layout::Distributed(ExtentsOf(module_, loop), threads_.Count(), copy.plan->vector).Normalized();
      std::get<ir::Store>(loop.body[0].op).async = true;
      loop.coalesced_width = uint32_t(copy.plan->vector);
    }
    return loop;
  }

  ir::Layout LoopLayout(ir::Stmt& stmt, const Facts& facts) {
    const auto& loop = std::get<ir::For>(stmt.op);
    if (loop.coalesced_width == 0) {
      PutStoresLast(module_, facts, stmt, context_.pointer_alignment());
      if (auto crossed = CrossedLayout(module_, facts, stmt, threads_.Count(), context_)) return crossed->Normalized();
    }
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    int64_t vector = loop.coalesced_width > 0 ? std::gcd<int64_t>(loop.coalesced_width, extents.back())
                                              : LoopVectorWidth(module_, facts, stmt, context_.pointer_alignment());
    const int64_t elements = std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
    while (vector > 1 && elements / vector < threads_.Count()) vector /= 2;
    const auto layout = [&](int64_t width) { return ir::Layout::Distributed(extents, threads_.Count(), width).Normalized(); };
    const std::vector<MemoryRun> runs = MemoryRunsOf(module_, facts, stmt, context_.pointer_alignment());
    if (loop.coalesced_width > 0) return layout(vector);
    const auto cost = [&](int64_t width) { return MemoryCost(layout(width), runs, context_.target->warp_size); };
    int64_t around = WidestAround(runs);
    while (around > vector && elements / around < threads_.Count()) around /= 2;
    if (GoesAlongLast(module_, loop, runs)) {
      vector = CheapestVector(vector, NarrowestBytes(runs), cost);
      if (around > vector) around = CheapestVector(around, NarrowestBytes(runs), cost);
    }
    return layout(around > vector && cost(around) < cost(vector) ? around : vector);
  }

  ir::Module& module_;
  const Context& context_;
  ir::ThreadRange threads_{};  // the threads that come to the statement
};

}  // namespace

ir::Result Threads(ir::Module& module, const Context& context, ir::Diagnostics&) {
  for (ir::Kernel& kernel : module.kernels) Binder(module, context).Run(kernel);
  return {};
}

}  // namespace kiln::compiler
