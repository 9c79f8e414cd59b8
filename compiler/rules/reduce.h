// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a block combine what they hold of one reduced dimension.
#pragma once

#include <vector>

#include "ir/layout.h"

namespace kiln::compiler {

struct ReduceSteps {
  std::vector<int> masks;             // exchanges between lanes, each with lane ^ mask
  std::vector<ir::Digit> exchange;    // thread digits that meet in shared memory

  // Partial results for each element of the result in shared memory; 1 where none goes there.
  int64_t Partials() const;
};

// Lanes meet by butterfly where a digit's size is a power of two inside of a warp; what is left meets in shared memory.
ReduceSteps StepsOf(const ir::Layout& src, int dim, int64_t warp_size);

}  // namespace kiln::compiler
