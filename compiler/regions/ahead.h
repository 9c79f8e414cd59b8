// SPDX-License-Identifier: Apache-2.0
//
// Tiles that a loop loads element by element and computes with: they are copied to shared memory, while earlier iterations compute, and read from
// there.
#pragma once

#include <cstdint>
#include <map>

#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Whether it is a tensor of one dimension, as programs have that compute addresses, which no other tensor of the kernel overlaps.
bool IsFlat(const ir::Buffer& buffer);

// Whether copies to shared memory may run ahead of the loop's products: those of its own body, each time.
bool RunsAhead(const ir::Kernel& kernel, const ir::For& loop);

// How many versions a pipelined loop makes of each buffer that it fills, if it has all the stages that it asks for; the others have one.
std::map<ir::BufferId, int64_t> VersionsOf(const ir::Module& module, const ir::Kernel& kernel);

// Bytes of the program's shared tiles, of those that a pipelined loop fills in as many versions as it has stages.
int64_t BytesOfTiles(const ir::Module& module, const ir::Kernel& kernel);

// Changes loops with products that copy no boxes; and loops without products that wait in each iteration for vectors that many threads want, or for
// an element for each thread.
void LoadAhead(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
