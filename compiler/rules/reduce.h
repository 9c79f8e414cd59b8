// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a block combine what they hold of one reduced dimension.
#pragma once

#include <span>
#include <vector>

#include "ir/layout.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct ReduceSteps {
  std::vector<int> masks;           // exchanges between lanes, each with lane ^ mask
  std::vector<ir::Digit> exchange;  // thread digits that meet in shared memory

  // Partial results in shared memory for each element of the result; 1 if none go there.
  int64_t Partials() const;
};

// Lanes of a warp combine by butterfly, as many as the largest power of two that divides a digit's size and fits in the warp. The groups
// that are left combine through shared memory: of 384 threads in a row, 32 lanes and then 12 warps.
ReduceSteps StepsOf(const ir::Layout& src, int dim, int64_t warp_size);

// A cluster's partial results arrive in turns, each with an mbarrier of its own.
inline constexpr int64_t kExchangeTurns = 2, kExchangeBarrierBytes = 8;

// How many reductions at the start of `block` can exchange partial results at one barrier: none of them reads what another writes.
size_t ExchangeTogether(std::span<const ir::Stmt> block);

}  // namespace kiln::compiler
