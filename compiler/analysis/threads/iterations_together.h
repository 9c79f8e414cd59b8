// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// How many iterations of a serial loop are written one behind the other, a power of two, so that their loads are under way together: as many as load
// the bytes of a thread that keep memory busy. 1: of a loop that does more than to load into registers and compute there, because the loads of an
// iteration then wait for what the one before does.
int64_t IterationsTogether(const ir::Module& module, const ir::For& loop);

}  // namespace kiln::compiler
