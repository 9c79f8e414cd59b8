// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::compiler {

// The iterations of a parallel loop are spread over the threads that come to it, and a local is each thread's own. Warns once of each local of
// which such iterations set more elements than one thread runs iterations, if threads read it behind the loop and nothing else has written it
// since: a thread has set the elements of its own iterations alone. Needs the ranges of threads that branches have.
void WarnOfOwnElements(const ir::Module& module, const ir::Kernel& kernel, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
