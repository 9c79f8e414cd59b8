// SPDX-License-Identifier: Apache-2.0
//
// What is done once the PTX is made: ptxas makes a cubin of it. Nothing here needs the program or LLVM, so that PTX of another host, or of a
// time when another ptxas was installed, will do.
#pragma once

#include <string>

#include "compiler/compile.h"
#include "compiler/options.h"
#include "ir/diagnostic.h"

namespace kiln::llvm_ir {

// With what PTX begins that holds functions of the program: if ptxas refuses it, that is the program's fault; and what to try then.
inline constexpr char kHasFunctions[] = "// With functions of the program.\n";
inline constexpr char kOfFunctions[] = "correct the functions in other languages, which are part of the kernel as they are";

// An error of the program's, or of an option's: the kernel asks for more registers or memory than the target, or `max_registers`, gives.
void ReportShortage(const compiler::Context& context, const std::string& why, ir::Diagnostics& diagnostics);

// Fills `result.assembled` by means of `hooks.ptxas`. False where `diagnostics`, or `result.unavailable`, say why not.
bool Assemble(const v1::Artifact& artifact, const compiler::Context& context, const compiler::Hooks& hooks, ir::Diagnostics& diagnostics,
              v1::WorkerResult& result);

}  // namespace kiln::llvm_ir
