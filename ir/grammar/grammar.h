// SPDX-License-Identifier: Apache-2.0
//
// Random modules from the IR's grammar, for tests and fuzzers and nothing else: every op of ops.def, every expression of exprs.def, every type,
// memory and kind of loop. Most of them are programs that compile: indices lie inside, statements of the whole block stand where all threads
// come, iterations write elements of their own. Some are not, for refusals are to be tried as well.
#pragma once

#include <cstdint>

#include "ir/module.h"

namespace kiln::ir::grammar {

struct Options {
  bool decisions = false;  // also what passes decide, and the statements that only they make
  bool simplified = true;  // expressions as the builders make them; else some are left as a front end may send them
  bool odd = true;         // also what few programs have: tiles of nothing, counts of 64 bits, and what is refused
};

// The same for equal arguments, on every machine.
Module MakeModule(uint64_t seed, const Options& options);

}  // namespace kiln::ir::grammar
