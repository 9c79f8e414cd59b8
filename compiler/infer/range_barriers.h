// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

// Of synchronize, once barriers stand where they are needed. A barrier joins the threads that come to it. Those of a branch that has threads
// of its own get the number of a barrier, if they are of several warps: the same wherever that range of threads meets. Refused where the
// target has no barrier of just these threads, and under any other condition that differs between threads.
void BindBarriers(const ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
