// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::compiler {

// The iterations of a parallel loop are spread over the threads, and a local is each thread's own. Warns once of each local of which such
// iterations set elements that their variables name, if single threads read it outside of parallel loops: a thread has set the elements of
// its own iterations alone.
void WarnOfOwnElements(const ir::Module& module, const ir::Kernel& kernel, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
