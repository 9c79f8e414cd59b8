// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops beside a ring's products may read global memory themselves, for instance the scales of a quantised operand. This pass
// loads such values into registers several iterations ahead. The loop's body is repeated for each of them, so that every repetition has
// registers of its own and none is moved while its load is under way.
//
//   for k { for i: x[i] = f(s[k, i]) }    →    s0[i] = s[0, i]; s1[i] = s[1, i]
//                                              for k { for i: x[i] = f(s0[i]); s0[i] = s[2k + 2, i]; the same of s1 and 2k + 1 }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: rings, and the layouts of the parallel loops.
void Prefetch(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
