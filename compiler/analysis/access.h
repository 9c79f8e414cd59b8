// SPDX-License-Identifier: Apache-2.0
//
// Which buffers a statement reads and writes.
#pragma once

#include <optional>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct Access {
  ir::BufferId buffer;
  bool write;
  bool async = false;  // takes place, or lands, until the next AsyncWait that covers it
  // Elementwise accesses: one index for each dimension. Tile accesses: the region's offsets.
  std::vector<ir::ExprId> indices;
  bool tile;
  std::vector<int64_t> extents;         // of a tile; none: unknown elements of a tensor
  ir::ExprId load{};                    // of an elementwise read: the expression
  std::optional<ir::ExprId> mask = {};  // the read takes place only where it holds
  bool of_alias = false;                // stands for one to another tensor, which may share memory with this one
};

// What an expression reads, in the order of ir::ReadsOf.
void CollectLoads(const ir::ExprPool& pool, ir::ExprId id, std::vector<Access>& accesses);
// Accesses of the statement itself, in order. An access to a tensor that may alias others counts as one of each of these too, of unknown
// elements (a tile without extents). For a loop or branch, only what its header reads. A parallel loop counts as one statement with all
// accesses of its body.
std::vector<Access> AccessesOf(const ir::Module& module, const ir::Stmt& stmt);
// Shared memory that AccessesOf leaves out: the statement itself writes partial results there, passes a barrier of its own, and reads them.
std::optional<ir::BufferId> ScratchOf(const ir::Stmt& stmt);
// How many accesses the statement and those inside it make to a buffer; whether one of them writes global memory.
int64_t CountAccesses(const ir::Module& module, const ir::Stmt& stmt, ir::BufferId buffer);
bool WritesGlobal(const ir::Module& module, const ir::Stmt& stmt);
// Whether a parallel loop reads a buffer in memory that it also writes. Where several threads run an iteration, they may then meet.
bool ReadsItsWrites(const ir::Module& module, const ir::Stmt& loop);
// Whether the buffer has more elements than any device has memory: it stands for all addresses, of which only some can be read. Elsewhere every
// element of a tensor can be read, whether or not the program asks for it.
bool HasGaps(const ir::Module& module, ir::BufferId buffer);
// Whether an atomic in the statement gives the value from before; acquires what other threads of the device did; releases what was done.
bool GivesOld(const ir::Stmt& stmt);
bool Acquires(const ir::Stmt& stmt);
bool Releases(const ir::Stmt& stmt);
// Whether a block of the kernel may learn by atomics how far others are, and so wait for them, or waits for all at a barrier.
bool MeetsOtherBlocks(const ir::Kernel& kernel);

}  // namespace kiln::compiler
