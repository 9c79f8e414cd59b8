// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/clear_sums.h"

#include <span>

#include "compiler/analysis/definitions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

void Visit(const ir::Module& module, ir::Kernel& kernel, ir::Block& block) {
  for (size_t i = 0; i < block.size(); ++i) {
    ir::ForEachBody(block[i].op, [&](ir::Block& body) { Visit(module, kernel, body); });
    auto* gemm = std::get_if<ir::Gemm>(&block[i].op);
    if (gemm == nullptr || gemm->clear_accum || gemm->plan->promoted || gemm->c.extents != module.ShapeOf(gemm->c.buffer)) continue;
    const ir::Stmt* zeroed = ZeroedBy(module, std::span(block).first(i), gemm->c.buffer);
    if (zeroed == nullptr) continue;
    gemm->clear_accum = true;
    kernel.decisions.push_back({"clear_sums", gemm->c.buffer, "starts from zero in the product", "nothing sets it to zero before", block[i].loc});
    block.erase(block.begin() + (zeroed - block.data()));
    --i;
  }
}

}  // namespace

void ClearSums(ir::Module& module, ir::Kernel& kernel, const Context&) { Visit(module, kernel, kernel.body); }

}  // namespace kiln::compiler
