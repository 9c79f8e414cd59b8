// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// A fragment is spread over the threads that use it. If the threads of a branch use a fragment and other threads do too, the branch gets a
// fragment of its own: elements pass through shared memory before the branch and, if it writes some, after it. An error if one branch of a
// condition writes a fragment that the threads of the other branch use: nothing determines which comes first.
ir::Result HandOver(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
