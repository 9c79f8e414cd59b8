// SPDX-License-Identifier: Apache-2.0
//
// Loads of tiles whose rows are shorter than those that tensor copies move well, as a product's metadata are. A ring takes no other loads, so that
// they become tensor copies where that gives the loop a ring.
#pragma once

#include <functional>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Whether all loads of the loop are tensor copies, or can be with tiles of wider rows; `is_load` tells of the former. Then those tiles, which only
// products read, get rows of whole boxes, and hold what lies beside their elements, too. `facts`: within the loop. Returns the loads in question.
std::vector<ir::Copy*> WidenLoads(ir::Module& module, ir::For& loop, const Facts& facts, const AccessCounts& uses, const Context& context,
                                  const std::function<bool(const ir::Copy&)>& is_load);

}  // namespace kiln::compiler
