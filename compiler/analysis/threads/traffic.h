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

// Tensors to load past the caches: what a kernel that writes little of what it reads (a reduction) reads once. A kernel that writes as much
// as it reads is faster with plain loads. So is one in which a short loop reads some of a tensor again, as cross-entropy reads the label's
// element: it finds that in the cache.
std::set<ir::BufferId> ReadOnceTensors(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target);

}  // namespace kiln::compiler
