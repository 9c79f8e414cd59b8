// SPDX-License-Identifier: Apache-2.0
//
// Decides how each access of a parallel loop is made: how many elements at once, what the caches keep, and by which instruction. Every
// store of a parallel loop that several elements can share the work of gets an ir::StorePlan, which LLVM IR is written from.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

void Accesses(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
