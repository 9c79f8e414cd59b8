// SPDX-License-Identifier: Apache-2.0
//
// Gives every fragment, shared buffer and parallel loop a layout.
//
//   strict   what instructions dictate: accumulators and operands of matrix products; fragments touched outside of tile operations
//            are held by every thread
//   common   follows through copies, parallel loops and reductions
//   free     the rest: each of the largest fragments of a component is tried as the root; the choice with the fewest uses that do
//            not fit, then the fewest registers, is kept
//
// A fragment has one layout. A use that needs another is served through shared memory (stage.h), so that inference never fails.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Layouts(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
