// SPDX-License-Identifier: Apache-2.0
//
// Inserts the barriers that make every statement's effect visible to the next, and no more. A statement needs a barrier before it if
// another thread has accessed the same shared or global buffer since the last barrier and one of the two accesses writes. Versions of a
// buffer that a loop rotates count as different places: iteration k's use of version (k + c) mod S meets iteration k + d's use of (k + c')
// mod S only where c = c' + d modulo S.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Synchronize(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
