// SPDX-License-Identifier: Apache-2.0
//
// Rings, which hand tiles from the threads that fill them to the others.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

inline constexpr int kPair = 2;  // blocks of a cluster that share loads

class Rings : Part {
 public:
  Rings(KernelContext& context, const Places& places) : Part(context), places_(places) { FindUses(); }

  // Before anything else.
  void Init();
  void Lower(const ir::RingStep& step);

  bool multicast() const { return multicast_; }  // blocks of a cluster fill each other's rings
  // The mbarrier of the stage that is filled next, and whether it is this block's turn to fill it (i1).
  Value* FilledBarrier(const ir::Ring& ring) const { return Barrier(ring.barriers, Position(ring.position).first); }
  Value* IsMyTurn(const ir::Ring& ring) const;

 private:
  struct Use {
    ir::BufferId position;
    bool by_thread;      // each thread releases a stage for itself, not one lane for its warp
    bool fenced;         // threads read it with loads of their own; the next copy must wait for these
    bool multicast;      // the other block of the cluster fills it too
    uint32_t statement;  // the first that fills it
  };

  void FindUses();
  void FindReleases(const ir::Block& block, const std::map<ir::BufferId, ir::BufferId>& rings);
  Value* Barrier(ir::BufferId barriers, Value* index) const;
  std::pair<Value*, Value*> Position(ir::BufferId position) const;  // stage, parity
  void SetPosition(ir::BufferId position, Value* stage, Value* parity) const;

  const Places& places_;
  std::map<ir::BufferId, Use> uses_;  // by barriers
  bool multicast_ = false;            // some ring is
};

}  // namespace kiln::llvm_ir
