// SPDX-License-Identifier: Apache-2.0
//
// What a kernel moves between memory and the multiprocessors.
#pragma once

#include <set>

#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

// Tensors whose lines the L2 shall keep longer than other data: those that a kernel without products writes, if it reads about as much from
// memory as it writes. Reads then evict no dirty line early, and more dirty lines are written back together. Kernels that read much more
// than they write gain nothing.
std::set<ir::BufferId> KeptTensors(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target);

}  // namespace kiln::compiler
