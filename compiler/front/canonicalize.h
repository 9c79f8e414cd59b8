// SPDX-License-Identifier: Apache-2.0
//
// Folds what is known and drops what has no effect. Afterwards: expressions are simplified; each variable is bound
// once; no let binds a constant, a variable or small index arithmetic, or is unused; every allocated buffer is used;
// conditions of if and extents of loops that are constant are gone where they decide (no branch on a constant, no loop
// of no iterations, no serial loop of one); no loop is vectorized: those are unrolled; nothing follows a break or continue in its block.
// Assumptions stay.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Canonicalize(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
