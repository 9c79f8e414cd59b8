// SPDX-License-Identifier: Apache-2.0
//
// What the addresses of a warp's lanes make of an access: instructions, sectors of the L2, turns of the banks of shared memory.
#pragma once

#include <span>

#include "compiler/plan/scalars.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

inline constexpr int64_t kSector = 32;  // bytes: the least that the L2 gives or takes

// Of one access in all iterations of a parallel loop.
struct Traffic {
  double instructions = 0;  // of a warp
  double turns = 0;         // of the path to shared memory and the first cache, 128 bytes in each: of a warp
  double sectors = 0;       // that the block asks the L2 for, each counted once where the first cache keeps it
};

// `width`: elements in one instruction. `scalars`: values of the variables around the loop; those of the loop change and are left at some value.
Traffic TrafficOf(const ir::Module& module, Scalars& scalars, const ir::For& loop, const ir::Layout& layout, ir::BufferId buffer,
                  std::span<const ir::ExprId> indices, int64_t width, bool store, int64_t warp_size);

// Bytes from the buffer's start; whether the element is inside of it, as far as that is known.
struct Place {
  int64_t address = 0;
  bool inside = true;
};
Place PlaceOf(const ir::Module& module, const Scalars& scalars, ir::BufferId buffer, std::span<const ir::ExprId> indices);

}  // namespace kiln::compiler
