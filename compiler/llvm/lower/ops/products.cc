// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/products.h"

#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

void LowerProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm) {
  if (gemm.plan->by_warps) return LowerProductByWarps(context, memory, gemm);
  switch (RowOf(gemm, context.target()).team) {
    case target::Team::kThread: return LowerScalarProduct(context, memory, gemm);
    case target::Team::kWarp: return LowerWarpProduct(context, memory, gemm);
    case target::Team::kGroup: return LowerGroupProduct(context, memory, gemm);
  }
}

}  // namespace kiln::llvm_ir
