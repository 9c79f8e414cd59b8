// SPDX-License-Identifier: Apache-2.0
//
// A ring's stage is released as soon as its last reader is done: its release moves up over products, loops and waits that do not touch its tiles, and
// into the branches of a condition. The stage is then filled again while those statements run.
//
//   if n > 0 {                                     if n > 0 {
//     for k in n { gemm q, a[k] → s; … }             for k in n { gemm q, a[k] → s; … }
//     gemm p, b → o                            →     ring release q
//   }                                                gemm p, b → o
//   ring release q                                 } else { ring release q }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: schedule, which takes loops apart.
void Release(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
