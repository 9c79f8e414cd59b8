// SPDX-License-Identifier: Apache-2.0
//
// What `synchronize` asks of single statements and of their places in loops.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/digits.h"
#include "compiler/analysis/iterations.h"
#include "compiler/analysis/signals.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

inline bool IsMemory(ir::Space space) { return space == ir::Space::kShared || space == ir::Space::kGlobal; }

inline Access Whole(ir::BufferId buffer, bool write) { return {buffer, write, false, {}, true, {}, {}}; }

// What single statements of a kernel mean to others.
struct Special {
  std::set<ir::BufferId> in_rings;                                 // rings hand these over with mbarriers of their own
  std::map<ir::BufferId, std::vector<const ir::Stmt*>> in_flight;  // products that run on until a wait for their sum
  std::set<ir::BufferId> by_group;                                 // each group of warps stores the part that it wrote
  std::set<const ir::Stmt*> acquire, release;                      // statements whose atomics do, or those of blocks within
  // Tensors that nothing in the kernel writes, where it tells no other block of its reads: nobody waits for these.
  std::set<ir::BufferId> read_only;
  bool signals = false;  // the program has barriers of its own
};
Special FindSpecial(const ir::Module& module, const ir::Block& body);

bool IsTensor(const ir::Stmt& stmt);  // a tensor copy that signals none of the program's barriers

// Of single threads, each with elements of its own: no parallel loop.
bool IsOfSingleThreads(const ir::Stmt& stmt);

// Whether two buffers share memory.
bool Overlap(const ir::Module& module, ir::BufferId a, ir::BufferId b);

// Whether both statements access single elements of the buffer, `first` those that it writes or those that it reads, and never the same one.
bool AreElementsApart(const IndexSteps& indices, const ir::Stmt& first, std::span<const Access> of_first, bool writes, const ir::Stmt& second,
                      const Access& access);

// Whether the two statements, which `threads` may come to, access single elements that belong to one thread each. (Asked only where threads cannot
// meet.)
bool HaveTheSameThread(const Digits& digits, const ir::ThreadRange& threads, const ir::Stmt& first, std::span<const Access> of_first, bool writes,
                       const ir::Stmt& second, const Access& access);

// Whether they access single elements of the buffer, all by these indices.
bool HaveTheSameIndices(const ir::Stmt& first, std::span<const Access> of_first, bool writes, const ir::Stmt& second, const Access& access);

// Atomics of one kind on one buffer, but for exchanges and stores, may come in either order. A sum of floats rounds by its order, which atomics
// leave open anyway.
bool Commute(const ir::Stmt& a, const ir::Stmt& b);

// Threads that run apart order their atomics by nothing else. A store to another block is none: it takes no atomic step.
bool AreAtomics(const ir::Stmt& a, const ir::Stmt& b);

// What an atomic releases, all threads of the block did before it; what it acquires is there for all of them after it. Where threads cannot
// meet, each has its own. `first` accesses `before`, and `second`, which comes later, `after`.
bool AreOrdered(const ir::Module& module, const Special& special, const ir::Stmt& first, ir::BufferId before, const ir::Stmt& second,
                ir::BufferId after);

// Within such a scope not all threads take part.
struct DivergentScope {
  DivergentScope(int& depth, bool differs) : depth(depth), differs(differs) { depth += differs; }
  DivergentScope(const DivergentScope&) = delete;
  ~DivergentScope() { depth -= differs; }
  int& depth;
  const bool differs;
};

// The statements of a kernel's body, those within more loops behind those within fewer.
std::vector<const ir::Stmt*> OutermostFirst(const ir::Block& body);

// Makes room for a barrier before each test of a loop whose condition reads memory.
void TestReadsInside(ir::Module& module, ir::Block& block);

}  // namespace kiln::compiler
