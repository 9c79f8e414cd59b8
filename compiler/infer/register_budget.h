// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// An error, with the fragments that take them, where a kernel asks for more registers of each thread than any code could use. Fragments have
// their layouts.
void CheckRegisters(const ir::Module& module, const ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
