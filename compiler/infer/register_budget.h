// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// An error, with the fragments that take them, where those that live at a time ask for more registers of each thread than the options let
// spill: code and the time to assign registers grow with each. Fragments have their layouts.
void CheckRegisters(const ir::Module& module, const ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
