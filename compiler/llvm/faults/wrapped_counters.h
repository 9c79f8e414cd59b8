// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// ptxas (13.0, for sm_90a, with -O3) counts the iterations of `for (i = -2; ; ++i) { …; if (i + 1 >= 5u) break; }` as if the comparison were signed:
// it unrolls the loop seven times and drops the comparison, where -1 as an unsigned number ends the loop at once. LLVM makes such comparisons of two
// ends of a range. Loops that an unsigned comparison leaves, of a counter that may begin below 0, are not to be unrolled by ptxas; where it does not
// unroll a loop, it keeps the comparison. A counter that begins with a value that ptxas cannot know is counted right.
void KeepWrappedCounters(llvm::Function& function);

}  // namespace kiln::llvm_ir
