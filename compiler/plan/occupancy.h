// SPDX-License-Identifier: Apache-2.0
//
// How many blocks of a kernel share a multiprocessor.
#pragma once

#include <cstdint>

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

struct Occupancy {
  int64_t registers = 0;  // of a thread, as estimated before code exists
  int64_t spilled = 0;    // words of a thread that do not fit its registers
  int64_t shared = 0;     // bytes of a block
  int64_t blocks = 1;     // at one time
};

Occupancy OccupancyOf(const ir::Module& module, const ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
