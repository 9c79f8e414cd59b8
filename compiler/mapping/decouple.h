// SPDX-License-Identifier: Apache-2.0
//
// Takes a loop apart whose tiles are gathered and whose products depend on each other: each part of its statements goes to warps of its own, in a
// loop of its own, and what one part computes for the next goes through shared memory. The products of one part then run beside the arithmetic of
// another, and copies beside both. (Decoupled software pipelining: Ottoni, Rangan, Stoler, August, MICRO 2005.)
//
//   for k in n { gather t(k); gemm q, t → s; m = f(s, m); w = g(s, m); gemm w, t → o }
//   → threads of one group:   for k in n { await empty t; gather t(k); arrive full t }
//     those of another:       for k in n { await full t; gemm q, t → s; m = f(s, m); await taken; w = g(s, m); arrive ready; arrive empty t }
//     the others:             for k in n { await ready; gemm w, t → o; arrive taken; arrive empty t }
//
// Statements stay together that depend on each other in a circle over the iterations. Of all divisions of the rest the one is taken whose longest
// part is the shortest, if it is shorter than the loop as it stands: where copies take longer than products, nothing is gained.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Before instructions are chosen, which depend on the threads that come to a statement.
void Decouple(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
