// SPDX-License-Identifier: Apache-2.0
//
// Refuses what no order of the threads can make right: two iterations of a parallel loop, or of a copy within one buffer, that touch
// one element which one of them writes, where the other reads it or writes another value. Only what is proven counts: two iterations
// are named, and with their numbers put in, both statements run and their indices are the same expressions. Iterations that only may
// meet, because a condition or an index is known at run time alone, are the program's affair; the emulator watches them.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Conflicts(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
