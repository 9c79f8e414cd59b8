// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// A tile operation is one step of all threads that come to it, each of which does a share. Where a condition lets only some threads of
// the block come, and those are a range by number, the branch gets that range (ir::If): its tile operations are done by those threads.
// Where they are none, or may be any, the operation is refused, and the error names the condition.
ir::Result Together(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
