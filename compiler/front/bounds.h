// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Refuses an access of shared memory, a fragment or a local array that is outside of it in an iteration that certainly runs, and names that
// iteration. A fragment that a parallel loop indexes by its own variable grows to the loop's extent instead, with a warning: such a
// program means one element for each iteration. What may or may not be outside is left to the emulator. Warns of an index of a tensor that
// overflows its type in an iteration that certainly runs. A tensor's pad value goes where nothing reads outside of the tensor.
ir::Result Bounds(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
