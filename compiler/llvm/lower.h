// SPDX-License-Identifier: Apache-2.0
//
// The last step of Kiln's own: tile IR in which every decision is made, to LLVM IR of one thread.
#pragma once

#include <set>

#include "compiler/llvm/llvm_headers.h"
#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

// Adds one function for each kernel, named as EntryName says. `out` has its data layout. `kept`: tensors with stores whose lines the L2
// keeps longer. False where diagnostics say why.
bool Lower(const ir::Module& module, const compiler::Context& context, llvm::Module& out, std::set<ir::BufferId>& kept, ir::Diagnostics& diagnostics);

}  // namespace kiln::llvm_ir
