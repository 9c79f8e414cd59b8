// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Cycles of a multiprocessor that the threads of the kernel take for what the statement computes with their registers: its operations at one
// a lane and cycle, or its special functions on their own unit if these take longer. Index arithmetic and accesses to memory count as nothing.
double ArithmeticCycles(const ir::Module& module, const ir::Kernel& kernel, const ir::Stmt& stmt, const target::Target& target);

}  // namespace kiln::compiler
