// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// A loop that fills rings begins, for each group of warps, with the first iteration whose mask holds for some element of the group's rows. In those
// before it the group only hands the stages of the rings back.
void SkipSteps(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
