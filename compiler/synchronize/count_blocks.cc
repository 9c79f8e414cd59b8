// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/count_blocks.h"

#include <array>
#include <optional>

#include "compiler/analysis/grid_barriers.h"
#include "compiler/rewrite/fresh.h"

namespace kiln::compiler {

void CountBlocks(ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics) {
  std::optional<ir::BufferId> counter;
  ir::Walk(kernel.body, [&](ir::Stmt& stmt) {
    if (!IsGridBarrier(stmt)) return;
    if (target.family != target::Family::kNvptx) {
      return diagnostics.Unsupported("a barrier of all blocks, for which AMD GPUs would have to be asked to hold them at one time",
                                     "open another T.Kernel in the same function: its launch begins when this one's blocks are done", stmt.loc);
    }
    if (!counter) {
      counter = FreshBuffer(
          module,
          {.space = ir::Space::kGlobal, .dtype = ir::DType::kU32, .shape = ShapeOfConstants(module, std::array{int64_t{1}}), .workspace = true},
          "blocks_here");
    }
    std::get<ir::Barrier>(stmt.op).counter = counter;
  });
  if (counter) {
    kernel.decisions.push_back({"synchronize", std::nullopt, "all blocks of the launch must be on the device at one time",
                                "they wait for each other at a barrier of the grid"});
  }
}

}  // namespace kiln::compiler
