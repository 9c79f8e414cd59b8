// SPDX-License-Identifier: Apache-2.0
//
// A use may need another layout than the fragment has. This pass stores the tile to shared memory and reads it back in the order that the
// use needs.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: layouts of every fragment and of every parallel loop that touches one. Afterwards every use fits its layout.
void Stage(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
