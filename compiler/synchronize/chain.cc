// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/chain.h"

#include <span>

#include "compiler/analysis/signals.h"
#include "compiler/rules/gemm.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

bool RunsOn(const ir::Gemm& gemm, const target::Target& target) {
  return gemm.plan && RowOf(gemm, target).in_flight && !gemm.plan->promoted && !gemm.plan->by_warps && gemm.plan->warps_k == 1;
}

// Whether the second adds to all that the first computes, by the same instruction, and takes none of it as an operand.
bool Continues(const ir::Gemm& first, const ir::Gemm& second) {
  const bool whole = first.c.offsets == second.c.offsets && first.c.extents == second.c.extents;
  return second.c.buffer == first.c.buffer && whole && !second.clear_accum && second.plan->instruction == first.plan->instruction &&
         second.a.buffer != first.c.buffer && second.b.buffer != first.c.buffer;
}

// The product that the next statements lead to, if they are only waits for what others bring.
const ir::Gemm* NextProduct(std::span<const ir::Stmt> behind) {
  for (const ir::Stmt& stmt : behind) {
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) return gemm;
    if (!ir::IsOneOf<ir::Await>(stmt.op)) return nullptr;
  }
  return nullptr;
}

void Visit(ir::Kernel& kernel, ir::Block& block, const target::Target& target) {
  for (size_t i = 0; i < block.size(); ++i) {
    ir::ForEachBody(block[i].op, [&](ir::Block& body) { Visit(kernel, body, target); });
    auto* gemm = std::get_if<ir::Gemm>(&block[i].op);
    if (gemm == nullptr || !RunsOn(*gemm, target)) continue;
    const ir::Gemm* next = NextProduct(std::span(block).subspan(i + 1));
    if (next == nullptr || !RunsOn(*next, target) || !Continues(*gemm, *next)) continue;
    gemm->plan->in_flight = true;
    kernel.decisions.push_back({"chain", gemm->c.buffer, "runs on until the next product has ended", "which adds to the same sum", block[i].loc});
  }
}

}  // namespace

void Chain(ir::Module&, ir::Kernel& kernel, const Context& context) {
  if (HasSignals(kernel)) Visit(kernel, kernel.body, *context.target);
}

}  // namespace kiln::compiler
