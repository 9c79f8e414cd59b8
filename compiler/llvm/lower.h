// SPDX-License-Identifier: Apache-2.0
//
// The last step of Kiln's own: tile IR in which every decision is made, to LLVM IR of one thread.
#pragma once

#include <memory>

#include "compiler/llvm/llvm_headers.h"
#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

// One function for each kernel, named as EntryName says. nullptr where diagnostics say why.
std::unique_ptr<llvm::Module> Lower(const ir::Module& module, const compiler::Context& context, llvm::LLVMContext& llvm,
                                    ir::Diagnostics& diagnostics);

}  // namespace kiln::llvm_ir
