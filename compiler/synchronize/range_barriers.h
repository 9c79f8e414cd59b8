// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

// The last step of synchronize, once barriers stand where they are needed. A barrier joins the threads that come to it. A branch that only
// some threads enter gets a barrier number if those are several warps; the same range of threads gets the same number everywhere. An error
// where the target has no barrier for just these threads, and under any other condition that differs between threads.
void BindBarriers(const ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
