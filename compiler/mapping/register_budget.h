// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Reports an error, with the fragments concerned, where the fragments that live at one time need more registers of each thread than the
// options let spill: code size and register allocation time grow with each. Needs: the fragments' layouts.
void CheckRegisters(const ir::Module& module, const ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics);

// The most registers of a thread that fragments take at a time before they have layouts, each spread evenly over `threads`. Those of branches that
// none of these threads enter take none.
int64_t MostEvenWords(const ir::Module& module, const ir::Kernel& kernel, const ir::ThreadRange& threads);

// The most registers of a thread that fragments take at a time once code is made: without those whose elements are used as they come.
int64_t MostFragmentWords(const ir::Module& module, const ir::Kernel& kernel);

}  // namespace kiln::compiler
