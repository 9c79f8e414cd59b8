// SPDX-License-Identifier: Apache-2.0
//
// Elements of one or two bytes that lie behind each other in memory and begin anywhere, as rows do of a tensor with an odd number of columns. A warp
// that moves them one by one moves a fraction of what it can. So the aligned vectors around them move between memory and shared memory, and the
// elements between there and the loop that uses them. What is stored at either end of the run, in vectors that hold others' elements, too, goes
// element by element.
//
//   for i, j in m, n { t[i, j] = x[r + i, j] }    →    first, phase = (r · n) divided by 8
//                                                      for c, e { s[c · 8 + e] = (x as [size / 8, 8])[first + c, e] }
//                                                      for i, j in m, n { t[i, j] = s[phase + i · n + j] }
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Runs before instructions and layouts are chosen. Applies to kernels without matrix products, where all threads come, to tensors that the kernel only
// reads or only this loop writes.
void AlignRuns(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
