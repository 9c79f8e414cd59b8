// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/target/target.h"
#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::compiler {

// Gives the kernel's barriers of the grid (ir::Barrier::grid) the memory in which the blocks count who has come. An error on targets that cannot
// hold all blocks of a launch at one time.
void CountBlocks(ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
