// SPDX-License-Identifier: Apache-2.0
//
// Which threads gather which rows. A thread computes the place of each of its rows, and whether it is there, so that a thread should have few
// rows: neighbouring threads take one line of memory of a row, and a thread takes all lines of its rows.
//
//   64 rows of 512 elements of 2 bytes by 256 threads:   [2r8 32t8][8r1 8t1 8r16]
#pragma once

#include <span>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// `gathers` are loops over rows and columns of tiles that find row i in element i of the fragment `rows`, which `load` alone fills. Gives all of them
// layouts with fewer rows for each thread, if there are such in which no thread copies more.
void GatherByLines(ir::Module& module, ir::BufferId rows, ir::For& load, std::span<ir::For* const> gathers);

}  // namespace kiln::compiler
