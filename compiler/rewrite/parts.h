// SPDX-License-Identifier: Apache-2.0
//
// A loop in parts: statements of its body that different threads run, one part behind the other, each in a loop of its own.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The first part computes what the last one needs; a third one fills tiles for both.
enum Part : size_t { kFirst = 0, kLast = 1, kFilling = 2 };

struct Parts {
  std::array<std::vector<size_t>, 3> statements;  // of the body, in order
  std::array<ir::ThreadRange, 3> threads;
  std::array<int64_t, 3> registers;
  int64_t at_start = 0;             // registers of each thread when the kernel starts
  std::set<ir::BufferId> tiles;     // that the third part fills
  std::set<ir::BufferId> crossing;  // what the last part reads in each iteration and the first one writes
  std::set<ir::BufferId> left;      // fragments of the first part that are used behind the loop
  bool awaited = false;             // the last part goes on behind the loop only when the first one has left its own
  int64_t stages = 2;               // of the tiles
  int64_t versions = 1;             // of what crosses
};

// The part whose threads hold the fragment. nullopt: the loop does not use it, or it is none.
std::optional<Part> OwnerOf(const ir::Module& module, const ir::Block& body, const Parts& parts, ir::BufferId id);

// Puts loops of the parts in the place of the pipelined loop kernel.body[at], whose body declares nothing. What stands behind the loop becomes the
// last part's; statements before it that touch fragments of the loop become their owner's.
void RunApart(ir::Module& module, ir::Kernel& kernel, const Parts& parts, size_t at);

}  // namespace kiln::compiler
