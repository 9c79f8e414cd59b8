// SPDX-License-Identifier: Apache-2.0
//
// Software pipelining. A pipelined loop's copies from global to shared memory run ahead of the statements that use them:
//
//   async copies      `num_stages` versions of the buffer; the copy for iteration k + num_stages − 1 is issued in iteration k, after
//                     waiting for the one that iteration k uses
//   tensor copies (TMA)  threads of their own run ahead through a ring of stages (loops/rings.h)
//   through registers (no cp.async, or not aligned for it) two versions, or one where shared memory does not hold two; iteration k loads k + 1
//                     into registers, computes, and stores
//
// Versions are a new outermost dimension of the buffer, indexed by iteration modulo versions: ordinary IR from here on. Async
// copies outside of pipelined loops form groups that synchronize waits for.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

ir::Result Pipeline(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
