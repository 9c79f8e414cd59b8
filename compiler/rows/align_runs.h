// SPDX-License-Identifier: Apache-2.0
//
// Elements of one or two bytes that lie behind each other in memory and begin anywhere, as rows do of a tensor with an odd number of columns. A warp
// that moves them one by one moves a fraction of what it can. So the aligned vectors around them move between memory and shared memory. What is
// stored at either end of the run, in vectors that hold others' elements, too, goes element by element.
//
//   for i, j in m, n { y[r + i, j] = t[i, j] }    →    first = (r · n) // 8, phase = (r · n) mod 8
//                                                      for i, j in m, n { s[phase + i · n + j] = t[i, j] }
//                                                      for c, e { (y as [size / 8, 8])[first + c, e] = s[c · 8 + e] }
//
// What a loop loads moves so if it is for shared memory. Registers would wait for the run, which costs more than loads of single elements.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Runs before instructions and layouts are chosen. Applies to kernels without matrix products, where all threads come, to tensors that the kernel
// only reads or only this loop writes.
void AlignRuns(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
