// SPDX-License-Identifier: Apache-2.0
//
// Elements of one or two bytes that are stored behind each other and begin anywhere, as rows do of a tensor with an odd number of columns. A warp
// that stores them one by one moves a fraction of what it can. So they go to shared memory, and the aligned vectors around them from there to the
// tensor. At either end of such a run, vectors hold others' elements too; there the run's own go one by one.
//
//   for i, j in m, n { y[r + i, j] = t[i, j] }    →    first = (r · n) // 8, phase = (r · n) mod 8
//                                                      for i, j in m, n { s[phase + i · n + j] = t[i, j] }
//                                                      for c, e { (y as [size / 8, 8])[first + c, e] = s[c · 8 + e] }
//
// A run of one row may end beyond the row; what lies there is not stored. Loads stay as they are: registers would wait for shared memory.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Runs before instructions and layouts are chosen. Applies to kernels without matrix products, where all threads come, to tensors that nothing else
// in the kernel accesses.
void AlignStores(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
