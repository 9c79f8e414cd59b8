// SPDX-License-Identifier: Apache-2.0
//
// The statements of a kernel that influence the layouts of its fragments.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "compiler/analysis/threads/register_map.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// A parallel loop and the fragments its body touches by projections of its variables.
struct LoopUse {
  ir::For* loop;
  struct Fragment {
    ir::BufferId buffer;
    bool write;
    bool covers;
    Projection projection;
    int64_t count = 1;  // accesses of the kind in the body
  };
  std::vector<Fragment> fragments;
  std::vector<int64_t> extents;
  int64_t vector;
  // Bits of the narrowest elements that it reads from, or writes to, global memory; INT64_MAX: none.
  int64_t read = INT64_MAX, written = INT64_MAX;
  std::set<ir::BufferId> elsewhere = {};  // fragments that it touches at indices which are no projections: through shared memory
};

struct FragmentUses {
  std::vector<LoopUse> loops;
  std::vector<ir::Gemm*> gemms;
  std::vector<ir::Reduce*> reduces;
  std::vector<const ir::PairSum*> halves;           // that give each block half of a sum
  std::vector<ir::BufferId> order;                  // fragments as the program first touches them
  std::set<ir::BufferId> whole;                     // touched outside of tile operations: every thread holds all of them
  std::map<ir::BufferId, ir::ThreadRange> threads;  // that use the fragment: the same wherever it is used (compiler/front/hand_over.h)
};
// The pointers are into the kernel's body.
FragmentUses FragmentUsesOf(const ir::Module& module, ir::Kernel& kernel);

}  // namespace kiln::compiler
