// SPDX-License-Identifier: Apache-2.0
//
// Relates the layout of a parallel loop to the layouts of the fragments its body touches.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// How one access of a fragment follows from the variables of a loop: index d is variable var[d], or −1 for a constant offset[d].
struct Projection {
  std::vector<int> var;
  std::vector<int64_t> offset;

  // Every loop variable feeds one index, from 0, over a dimension of its own extent.
  bool Covers(const ir::For& loop, const ir::Module& module, ir::BufferId buffer) const;
  // Every loop variable feeds one index.
  bool Slices(std::span<const int64_t> extents) const;
};

// nullopt where an index is not a single loop variable plus a constant, or a constant.
std::optional<Projection> ProjectionOf(const ir::Module& module, const ir::For& loop, std::span<const ir::ExprId> indices);

// The layout a fragment must have for each thread to find the elements of its own iterations in its registers. Needs a projection
// in which variables index whole dimensions from 0.
std::optional<ir::Layout> FragmentFromLoop(const ir::Layout& loop, const Projection& projection);
// The loop layout that a fragment covering the loop dictates.
ir::Layout LoopFromFragment(const ir::Layout& fragment, const Projection& projection, int loop_rank);
// The same where the loop goes over a part of the fragment: `extents` iterations from each index's offset on. nullopt where some threads
// hold nothing of the part.
std::optional<ir::Layout> LoopFromSlice(const ir::Layout& fragment, const Projection& projection, std::span<const int64_t> extents);
// The loop layout that a fragment over some of the variables suggests: the last other variable takes `vector` registers, then
// the threads that hold copies of the fragment.
ir::Layout LoopFromPart(const ir::Layout& fragment, const Projection& projection, std::span<const int64_t> extents, int64_t vector);

// For each register of the loop's layout the register of the fragment that holds the element accessed, the same for all threads;
// nullopt where some thread does not hold what its iterations access.
std::optional<std::vector<int64_t>> RegisterMap(const ir::Layout& loop, std::span<const int64_t> extents, const ir::Layout& fragment,
                                                std::span<const int64_t> shape, const Projection& projection);

// Constant extents of a parallel loop.
std::vector<int64_t> ExtentsOf(const ir::Module& module, const ir::For& loop);

}  // namespace kiln::compiler
