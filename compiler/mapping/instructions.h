// SPDX-License-Identifier: Apache-2.0
//
// Gives each gemm its matrix instruction and warp partition, by querying the target's rows for the cheapest one that fits, and each
// copy between global and shared memory its access width.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Instructions(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
