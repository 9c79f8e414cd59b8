// SPDX-License-Identifier: Apache-2.0
//
// Turns a module in which every decision is made into code. This header shows the compiler nothing of LLVM.
#pragma once

#include "compiler/artifact.h"
#include "compiler/compile.h"
#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

// Registers the targets; once in a process.
void InitializeTargets();

// Fills what `artifact` says of its code, and `generated`. False where diagnostics say why.
bool Generate(const ir::Module& module, const compiler::Context& context, const v1::Explain& explain, const compiler::Hooks& hooks,
              ir::Diagnostics& diagnostics, v1::WorkerResult& result, v1::Artifact& artifact, compiler::Generated& generated);

}  // namespace kiln::llvm_ir
