// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/layouts/layouts.h"

#include <vector>

#include "compiler/mapping/crossed_loop.h"
#include "compiler/mapping/expand.h"
#include "compiler/mapping/layouts/inference.h"
#include "compiler/mapping/layouts/stage.h"
#include "compiler/mapping/layouts/staged_operands.h"
#include "compiler/mapping/layouts/staged_stores.h"
#include "compiler/mapping/register_budget.h"
#include "compiler/mapping/shift_loops.h"
#include "compiler/mapping/tensor_copies.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/shared.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

void Infer(ir::Module& module, ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics) {
  FragmentUses uses = FragmentUsesOf(module, kernel);
  MemoryRuns runs = MemoryRunsOf(module, kernel, context.pointer_alignment());
  Inferred inferred = WithStagedOperands(module, kernel, context, uses, runs);
  if (StageStores(module, kernel, context, uses, runs, inferred)) {
    uses = FragmentUsesOf(module, kernel), runs = MemoryRunsOf(module, kernel, context.pointer_alignment());
    inferred = InferLayouts(module, context, uses, runs, inferred.staged);
  }
  if (!inferred.problem.empty()) diagnostics.Internal(inferred.problem);
  for (const auto& [buffer, layout] : inferred.fragments) module[buffer].layout = layout.Normalized();
  for (const LoopUse& use : uses.loops) {
    const auto it = inferred.loops.find(use.loop);
    if (it != inferred.loops.end()) use.loop->layout = it->second.Normalized();
  }
}

}  // namespace

ir::Result Layouts(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  for (ir::Kernel& kernel : module.kernels) {
    const size_t buffers = module.buffers.size();
    Expand(module, *context.target, kernel.body);
    ShiftLoops(module, kernel.body);
    Infer(module, kernel, context, diagnostics);
    Stage(module, kernel, context);
    PutRunsLast(module, kernel, context);
    Declare(module, kernel, buffers);
    LayOutTiles(module, kernel, *context.target);
  }
  for (ir::Buffer& buffer : module.buffers) {
    if (buffer.space != ir::Space::kShared || buffer.layout) continue;
    std::vector<int64_t> shape;
    for (ir::ExprId extent : buffer.shape) shape.push_back(module.exprs.ConstInt(extent).value_or(1));
    buffer.layout = SharedLayout(shape, ir::Bits(buffer.dtype));
  }
  for (const ir::Kernel& kernel : module.kernels) CheckRegisters(module, kernel, context, diagnostics);
  if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
