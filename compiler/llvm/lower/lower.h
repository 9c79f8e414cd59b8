// SPDX-License-Identifier: Apache-2.0
//
// The last step of Kiln's own: tile IR in which every decision is made, to LLVM IR of one thread.
#pragma once

#include "compiler/llvm/llvm_headers.h"
#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

// Adds one function for each kernel, named as EntryName says. `out` has its data layout. False where diagnostics say why.
bool Lower(const ir::Module& module, const compiler::Context& context, llvm::Module& out, ir::Diagnostics& diagnostics);

}  // namespace kiln::llvm_ir
