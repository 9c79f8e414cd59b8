// SPDX-License-Identifier: Apache-2.0
//
// Refuses programs that are wrong in every order of the threads: two iterations of a parallel loop, or of a copy within one buffer, touch
// one element; one of them writes it, and the other reads it or writes another value. Only what is proven counts: two iterations are named,
// and with their numbers put in, both statements run and their indices are the same expressions. Iterations that may or may not meet,
// because a condition or an index is known only at run time, are not refused; the emulator checks them.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Conflicts(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
