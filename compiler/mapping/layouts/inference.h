// SPDX-License-Identifier: Apache-2.0
//
// The layouts of a kernel's fragments and parallel loops.
//
//   strict   what instructions dictate: accumulators and operands of matrix products; fragments touched outside of tile operations
//            are held by every thread
//   common   follows through copies, parallel loops and reductions
//   free     the rest: each of the largest fragments of a component is tried as the root; the choice with the fewest uses that do
//            not fit, then the fewest registers, is kept
//
// A fragment has one layout. A use that needs another is served through shared memory (stage.h), so that inference never fails.
#pragma once

#include <map>
#include <set>
#include <string>

#include "compiler/analysis/threads/fragment_uses.h"
#include "compiler/analysis/threads/memory_runs.h"
#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

struct Inferred {
  std::map<ir::BufferId, ir::Layout> fragments;
  std::map<const ir::For*, ir::Layout> loops;
  int64_t misfits = 0;                 // bits of fragments that pass through shared memory for loops
  std::string problem;                 // of what should not be
  std::set<ir::BufferId> staged = {};  // operands that pass through shared memory
};

// `staged`: operands whose instructions dictate nothing, as they pass through shared memory.
Inferred InferLayouts(const ir::Module& module, const Context& context, const FragmentUses& uses, const MemoryRuns& runs,
                      const std::set<ir::BufferId>& staged);

}  // namespace kiln::compiler
