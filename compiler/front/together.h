// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// A tile operation is one step of all threads that come to it; each does a share. If a condition lets only some threads of the block come,
// and these are a range by number, the branch gets that range (ir::If), and its threads do its tile operations. So does a branch with a loop
// in which single threads write shared memory, for they may have to wait for each other. If the threads are no range, or may be any, the
// operation is refused with an error that names the condition. It is also refused if its value or an offset may differ between the threads
// that come, for which of them does which element is the compiler's choice. With a local each thread does all of the operation; then what
// they write to one place must be the same.
ir::Result Together(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
