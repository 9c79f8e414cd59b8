// SPDX-License-Identifier: Apache-2.0
//
// Accumulator fragments to shared memory by stmatrix: a pair of neighbouring registers over the lanes of a warp is an 8×8 matrix of
// 16-bit elements, four of which one instruction stores as rows of 16 bytes. Lane 4g + q holds row g, columns 2q and 2q + 1, or
// transposed (as of a swapped product) column g, rows 2q and 2q + 1.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/target/target.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// kMatrix or kTransposed where the loop's only store goes by stmatrix. `threads` come to the loop; `facts` hold at its body.
std::optional<ir::StoreForm> MatrixForm(const ir::Module& module, const Facts& facts, const target::Target& target, const ir::ThreadRange& threads,
                                        const ThreadLoop& loop, const ir::Store& store);

// Bytes from the first of the four matrices that begin at a register to the second and the third; the fourth lies at their sum. nullopt:
// they do not lie so.
std::optional<std::array<int64_t, 2>> MatrixSteps(const ThreadLoop& loop, ir::BufferId shared, const SplitAccess& access, int64_t first);

}  // namespace kiln::compiler
