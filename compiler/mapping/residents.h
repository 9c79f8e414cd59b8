// SPDX-License-Identifier: Apache-2.0
//
// How many blocks a multiprocessor is to hold at a time. Threads that fill rings need few registers, yet all threads of a block start with as many.
// Where more blocks fit if its groups share out what the block starts with, it starts with fewer.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Sets Kernel::min_blocks where the program leaves it open. Needs: the bytes of shared memory, and layouts.
void Residents(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
