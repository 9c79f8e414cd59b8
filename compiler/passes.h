// SPDX-License-Identifier: Apache-2.0
//
// The pipeline: one ordered table, and the runner that wraps each step.
#pragma once

#include <span>
#include <string_view>

#include "compiler/compile.h"
#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

struct Pass {
  std::string_view name;
  ir::Result (*run)(ir::Module&, const Context&, ir::Diagnostics&);
};

// In the order they run.
std::span<const Pass> Passes();

// Runs all. After each: the module is verified; its text goes to `result.dumps` where `explain` asks for it, its time to
// `result.timings`. `numbers`: as DumpText has them.
ir::Result RunPasses(ir::Module& module, const Context& context, const v1::Explain& explain, const Hooks& hooks, ir::Diagnostics& diagnostics,
                     v1::WorkerResult& result, std::span<const ir::SourceLoc> numbers = {});

}  // namespace kiln::compiler
