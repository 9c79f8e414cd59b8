// SPDX-License-Identifier: Apache-2.0
//
// A use may need another layout than the fragment has. This pass stores the tile to shared memory and reads it back in the order that the
// use needs. So it does where a thread writes an element of its own that others read: of a statement whose threads cannot wait for each other,
// as under a condition that differs between them, the tile is in shared memory from before it until behind it.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: layouts of every fragment and of every parallel loop that touches one. Afterwards every use fits its layout.
void Stage(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
