// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/analysis/facts.h"
#include "ir/module.h"

namespace kiln::compiler {

// Lets `facts` know that every size which the kernel computes with is an ordinary one, at most 2^28, so that index arithmetic on them stays within
// 32 bits. Returns the condition for it.
ir::ExprId AssumeOrdinary(ir::Module& module, const ir::Kernel& kernel, Facts& facts);

// The sum as an expression of 32 bits.
ir::ExprId Written(ir::Module& module, const Linear& sum);

}  // namespace kiln::compiler
