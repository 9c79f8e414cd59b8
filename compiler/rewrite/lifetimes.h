// SPDX-License-Identifier: Apache-2.0
//
// When the shared buffers of a kernel hold what is still needed.
#pragma once

#include <cstdint>
#include <map>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Statements, numbered in preorder.
struct Lifetime {
  int64_t first, last;
  bool Overlaps(const Lifetime& other) const { return first <= other.last && other.first <= last; }
  void Add(const Lifetime& other);
};

// How a kernel is looked at. `apart`: no buffer lives for a part of a serial loop's body only, so that threads need not wait for each other where
// one buffer's part ends and another's begins. `repeats`: blocks may go over several tiles, the kernel's body over and over.
struct LifetimeOptions {
  bool apart = false, repeats = false;
};

// A buffer used inside of a loop lives as long as the loop, because an iteration may read what an earlier one wrote. If each iteration writes the
// whole buffer before it reads any of it, the buffer lives for that part of the body only. What rings fill, and what other blocks or tensor stores
// may access at any time, lives from the start to the end. `outermost`: of each loop's variable, the outermost statement around it whose
// iterations or branches keep alive what they use.
struct Lifetimes {
  std::map<ir::BufferId, Lifetime> buffers;
  std::map<ir::VarId, Lifetime> outermost;
  Lifetime throughout;
};
Lifetimes LifetimesOf(const ir::Module& module, const ir::Kernel& kernel, const LifetimeOptions& options = {});

// Whether the loop is serial and no other one is within it.
bool IsInnermost(const ir::For& loop);

}  // namespace kiln::compiler
