// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// A fragment is spread over the threads that use it. One that the threads of a branch use and others, too, becomes two: the branch gets a
// fragment of its own, and elements pass through shared memory before it and, where it writes some, behind it. A fragment that one branch
// of a condition writes while the threads of the other use it is refused: nothing says who is first.
ir::Result HandOver(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
