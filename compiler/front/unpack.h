// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Afterwards no buffer has elements that share bytes. A tensor of 4-bit elements becomes one of bytes, half as long in its last dimension: a
// load takes its half of a byte, a store outside of parallel loops changes its half, and in a parallel loop one iteration stores both halves.
// All other buffers of such elements get 8 bits for each: i8, u8, and f8e4m3, which has all values of f4e2m1. Refuses what would have two
// threads change one byte, and what needs the sums of 4-bit types.
ir::Result Unpack(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

// Gives the tensors among the parameters back the types, shapes and strides that `declared` has: those of the module's buffers before the
// passes. The launcher speaks of elements.
void RestoreDeclared(ir::Module& module, const std::vector<ir::Buffer>& declared);

}  // namespace kiln::compiler
