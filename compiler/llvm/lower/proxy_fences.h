// SPDX-License-Identifier: Apache-2.0
//
// wgmma and tensor copies reach shared memory through the asynchronous proxy, threads through the generic one. PTX ISA, "Causality order": a fence
// of the writing thread must stand between what it wrote and what the asynchronous proxy reads, and between what a thread touched and what the
// asynchronous proxy writes there. A fence waits for all that its thread has under way, so one stands only where there is something to order.
#pragma once

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/target/target.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

class ProxyFences {
 public:
  // Needs: layouts and places in shared memory.
  ProxyFences(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target);

  // Whether threads fence before they wait for each other in this statement, a barrier or a reduction. Where the program or rings order threads by
  // barriers of their own, each does.
  bool NeededBefore(const ir::Stmt& stmt) const { return !follows_ || needed_.contains(&stmt); }

 private:
  // Since the last fence, on some path to a place.
  struct State {
    bool touched = false;  // bytes that the asynchronous proxy reads or writes
    bool copying = false;  // cp.async writes such bytes, until some wait
    bool operator==(const State&) const = default;
    State operator|(const State& other) const { return {touched || other.touched, copying || other.copying}; }
  };
  using Range = std::pair<int64_t, int64_t>;  // bytes of shared memory, from the first to behind the last

  void FindRanges(const ir::Block& block);
  State Behind(const ir::Block& block, State state, int depth);
  State Behind(const ir::Stmt& stmt, State state, int depth);
  State BehindLoop(const ir::Block& body, State state, int depth);
  // What the statement itself adds to a state.
  const State& TouchedBy(const ir::Stmt& stmt);
  Range RangeOf(ir::BufferId buffer) const;
  bool IsByUnit(const ir::Stmt& stmt) const;

  const ir::Module& module_;
  const target::Target& target_;
  bool follows_ = true;
  std::vector<Range> read_, written_;  // by the asynchronous proxy
  std::unordered_map<const ir::Stmt*, State> touched_;
  State left_;  // where iterations and loops end early
  std::set<const ir::Stmt*> needed_;
};

}  // namespace kiln::llvm_ir
