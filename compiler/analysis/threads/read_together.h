// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "ir/module.h"

namespace kiln::compiler {

// The fragments that threads read together, in a tile operation or a parallel loop. Which thread reads an element is then the compiler's choice.
// The other fragments are read by single statements alone, which every thread runs for itself.
std::set<ir::BufferId> ReadTogether(const ir::Module& module, const ir::Block& block);

// The fragments of which single statements read other elements than single statements write, or may do so: where a thread writes an element of
// its own, another thread may read it.
std::set<ir::BufferId> ReadElsewhere(const ir::Module& module, const ir::Block& block);

}  // namespace kiln::compiler
