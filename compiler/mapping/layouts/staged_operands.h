// SPDX-License-Identifier: Apache-2.0
//
// Operands of products that go through shared memory on their way to registers or to the matrix unit.
//
// A matrix instruction's operand lies so in registers that a thread holds few neighbours of it. The layout spreads to what the operand is computed
// from, up to loads of global memory, which then are narrow and lie apart. Where these loads cost more than the way through shared memory, the
// operand gets a layout that suits memory, and Stage brings it to the product.
#pragma once

#include "compiler/mapping/layouts/inference.h"

namespace kiln::compiler {

// The layouts of a kernel, with the operands staged for which that costs less.
Inferred WithStagedOperands(const ir::Module& module, ir::Kernel& kernel, const Context& context, const FragmentUses& uses, const MemoryRuns& runs);

}  // namespace kiln::compiler
