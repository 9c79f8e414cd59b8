// SPDX-License-Identifier: Apache-2.0
//
// Clusters of two blocks. Neighbours along an axis of the grid that need the same tile in every step of a loop take turns: one loads it
// for both. Done where tiles reach a multiprocessor more slowly than its products need them and a step is products alone, and never for a
// cluster that the program asks for itself.
#pragma once

#include <cstddef>
#include <optional>

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// After Rings. The axis along which blocks are paired.
std::optional<size_t> Multicast(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
