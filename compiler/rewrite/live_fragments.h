// SPDX-License-Identifier: Apache-2.0
//
// Which fragments hold what is still needed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

using LiveFragments = std::set<ir::BufferId>;

// Calls `visit` with the fragments that are live at each moment of a kernel, from its end to its begin, and the sum of their `words_of`: by liveness
// over statements, where one that gives each element of a fragment a value ends what the fragment held before. During a statement, what it reads and
// what it writes is live; of a loop over elements, what it reads before and what it writes behind it, for each element that is read for the last time
// gives its register to one that is written. `threads`: only of what some of these come to.
void ForEachMoment(const ir::Module& module, const ir::Kernel& kernel, const std::optional<ir::ThreadRange>& threads,
                   const std::function<int64_t(ir::BufferId)>& words_of, const std::function<void(int64_t words, const LiveFragments&)>& visit);

}  // namespace kiln::compiler
