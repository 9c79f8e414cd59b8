// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Refuses programs that certainly become more code than max_code, before the other passes take their time over them. What counts are stores and
// atomics of global memory that no condition guards, in unrolled loops once for each iteration, with the least that each becomes: its address
// and itself. Most programs that are too long become far more than that, and are refused while they are lowered.
ir::Result Length(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

// Says that the program becomes more code than max_code. `loc`: where it did; none where the functions that are inlined made the difference.
void TooMuchCode(const Context& context, ir::Diagnostics& diagnostics, ir::SourceLoc loc);

}  // namespace kiln::compiler
