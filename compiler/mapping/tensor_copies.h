// SPDX-License-Identifier: Apache-2.0
//
// Which copies of a kernel become tensor copies (TMA): loads of whole tiles in pipelined loops of kernels that use wgmma, loads of operands that
// stay for all of a block's products, and stores of tiles that nothing else of the kernel reads, as well as atomic additions of tiles. An accumulator
// that the program stores or adds straight to global memory goes through a shared tile first, stores piece by piece where shared memory is short.
// The block works on while the tensor unit reads the tile.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// After the products of the kernel have their instructions.
void TensorCopies(ir::Module& module, ir::Kernel& kernel, const Context& context);

// Lays out the shared tiles that wgmma reads or tensor copies move.
void LayOutTiles(ir::Module& module, const ir::Kernel& kernel, const target::Target& target);

// The instruction for the copy if a pipeline cannot use tensor copies.
ir::CopyInstruction PlainInstruction(const ir::Module& module, const ir::Copy& copy, int64_t vector, const Context& context);

}  // namespace kiln::compiler
