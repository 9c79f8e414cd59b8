// SPDX-License-Identifier: Apache-2.0
//
// Gives every fragment, shared buffer and parallel loop a layout (inference.h), and makes every use fit it (stage.h).
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Layouts(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
