// SPDX-License-Identifier: Apache-2.0
//
// Inserts the barriers that make every statement's effect visible to the next, and no more. A statement needs one before it where it
// meets, in shared memory or in one global buffer, an access of another thread since the last barrier, one of the two writing.
// Versions of a buffer that a loop rotates are told apart: iteration k's use of version (k + c) mod S meets iteration k + d's use of
// (k + c') mod S only where c = c' + d modulo S.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Synchronize(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
