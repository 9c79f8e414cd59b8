// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Refuses a tile operation that only some threads of the block reach: it is one step of the whole block, whose threads each do a share
// of it. The error names the condition.
ir::Result Together(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
