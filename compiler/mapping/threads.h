// SPDX-License-Identifier: Apache-2.0
//
// Distributes over threads what has no layout yet: parallel loops without fragments, and copies between global and shared memory.
// Neighbouring threads take neighbouring vectors of the widest access.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Threads(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
