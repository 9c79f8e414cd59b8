// SPDX-License-Identifier: Apache-2.0
//
// Removes degenerate cases, so that no later pass has to handle them: statements that work on nothing, and tiles without a dimension or
// without an element.
#pragma once

#include "ir/module.h"

namespace kiln::compiler {

// Replaces each statement that has an empty region by what is left of it: a product over an empty k clears its sum or does nothing, a reduction
// over nothing gives its identity, the others go. Then a tile of no dimensions becomes one of a single element, and a dimension of 0 one of
// 1: only code that is never reached can still name its elements.
void ReplaceDegenerate(ir::Module& module);

}  // namespace kiln::compiler
