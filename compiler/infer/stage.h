// SPDX-License-Identifier: Apache-2.0
//
// Serves uses that a fragment's layout does not fit through shared memory: the tile is stored there, and read in the order needed.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Every fragment and every parallel loop that touches one has its layout. Afterwards every use fits.
void Stage(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
