// SPDX-License-Identifier: Apache-2.0
//
// Products that add to one sum, one behind the other: the matrix unit takes them one after another, so only the last of them is waited for.
//
//   gemm a, b -> c; await ready; gemm d, e -> c    →    gemm a, b -> c in flight; await ready; gemm d, e -> c
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// In kernels with barriers of the program's own; elsewhere loops/schedule/schedule.h decides where products end. Needs: which products start
// from zero.
void Chain(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
