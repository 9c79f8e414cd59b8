// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/threads.h"

#include <functional>
#include <numeric>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/register_map.h"
#include "compiler/analysis/vector_width.h"
#include "compiler/infer/elementwise.h"

namespace kiln::compiler {
namespace {

class Binder {
 public:
  Binder(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Visit(ir::Block& block, Facts facts) {
    for (ir::Stmt& stmt : block) {
      if (auto* copy = std::get_if<ir::Copy>(&stmt.op)) stmt.op = BindCopy(*copy);
      std::visit(ir::Overloaded{
                     [&](ir::For& op) {
                       Facts inner = facts;
                       inner.EnterLoop(op);
                       if (op.kind == ir::LoopKind::kParallel) {
                         if (!op.layout) op.layout = LoopLayout(stmt, op, inner);
                       } else {
                         Visit(op.body, inner);
                       }
                     },
                     [&](ir::While& op) { Visit(op.body, facts); },
                     [&](ir::If& op) {
                       Facts inner = facts;
                       inner.Assume(op.cond);
                       Visit(op.then_body, inner);
                       Visit(op.else_body, facts);
                     },
                     [&](ir::Let& op) { facts.Bind(op); },
                     [&](ir::Assume& op) { facts.Assume(op.cond); },
                     [](auto&) {},
                 },
                 stmt.op);
    }
  }

 private:
  ir::For BindCopy(const ir::Copy& copy) {
    ir::For loop = CopyLoop(module_, copy);
    if (copy.plan && copy.plan->instruction == ir::CopyInstruction::kAsync) {
      loop.layout = ir::Layout::Distributed(ExtentsOf(module_, loop), kernel_.threads, copy.plan->vector).Normalized();
      std::get<ir::Store>(loop.body[0].op).async = true;
    }
    return loop;
  }

  ir::Layout LoopLayout(const ir::Stmt& stmt, const ir::For& loop, const Facts& facts) {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    int64_t vector = loop.coalesced_width > 0 ? std::gcd<int64_t>(loop.coalesced_width, extents.back())
                                              : LoopVectorWidth(module_, facts, stmt, context_.pointer_alignment());
    const int64_t elements = std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
    while (vector > 1 && elements / vector < kernel_.threads) vector /= 2;
    return ir::Layout::Distributed(extents, kernel_.threads, vector).Normalized();
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
};

}  // namespace

ir::Result Threads(ir::Module& module, const Context& context, ir::Diagnostics&) {
  for (ir::Kernel& kernel : module.kernels) {
    Facts facts(module);
    facts.EnterKernel(kernel);
    Binder(module, kernel, context).Visit(kernel.body, facts);
  }
  return {};
}

}  // namespace kiln::compiler
