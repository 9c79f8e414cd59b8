// SPDX-License-Identifier: Apache-2.0
//
// How many blocks a multiprocessor is to hold at a time. All threads of a block start with the same number of registers, although those that fill
// rings need few. Where more blocks fit, the block starts with fewer, and its computing threads take them over from those that fill rings.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// As many blocks as fit beside each other on a multiprocessor, whatever their registers. Needs: the bytes of shared memory.
int64_t MostBlocks(const ir::Kernel& kernel, const target::Target& target);
// No more either than the fragments of their threads let. Needs: layouts, too.
int64_t MostBlocks(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target);

// Sets Kernel::min_blocks where the program leaves it open. Needs: the bytes of shared memory, and layouts.
void Residents(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
