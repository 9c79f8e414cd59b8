// SPDX-License-Identifier: Apache-2.0
//
// Reductions of a fragment along one dimension: first what a thread holds, then lanes by butterfly, then warps through shared
// memory. Every thread that holds an element of the result ends up with the same bits: all combine in the same order.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "compiler/llvm/lower/barriers.h"
#include "compiler/llvm/lower/memory.h"
#include "compiler/rules/reduce.h"

namespace kiln::llvm_ir {

class Reductions : Part {
 public:
  Reductions(KernelContext& context, Memory& memory, Barriers& barriers)
      : Part(context), places_(memory.places()), registers_(memory.registers()), shared_(memory.shared()), barriers_(barriers) {}

  // Before anything else: what exchanges within a cluster need.
  void Init();
  // Several that exchange their partial results at one barrier.
  void Lower(std::span<const ir::Stmt> reduces);

 private:
  using Results = std::map<int64_t, Value*>;  // by register of the result
  // One exchange within a cluster: how many exchanges there were before, and the mbarrier that counts the results to arrive.
  struct Turn {
    Value *count = nullptr, *parity = nullptr, *mbarrier = nullptr;
  };
  // Where the partial results of a reduction lie.
  struct Partials {
    const ir::Reduce* reduce;
    ir::DType dtype;
    const ir::Layout* to;
    compiler::ReduceSteps steps;
    int64_t count = 1;             // for each element
    std::vector<int64_t> strides;  // of the result's dimensions, in elements of the result
    Value* start = nullptr;        // bytes: the thread's offset in the result plus the turn's
  };

  int64_t Lanes() const;  // that exchange registers
  Results ReduceInWarps(const ir::Reduce& reduce);
  Value* CombineInThread(ir::ReduceKind kind, ir::DType dtype, Values values) const;

  Turn BeginExchange(std::span<const ir::Stmt> reduces);
  void Exchange(std::span<const ir::Stmt> reduces, std::span<Results> values, const Turn& turn);
  int64_t PartialBytes(const ir::Reduce& reduce) const;
  Partials PartialsOf(const ir::Reduce& reduce, Value* turn) const;
  Value* PartialPointer(const Partials& partials, int64_t reg, Value* which, int64_t constant);
  void StorePartial(const Partials& partials, int64_t reg, Value* v, Value* mbarrier);
  Value* JoinPartials(const Partials& partials, int64_t reg);

  Places& places_;
  Registers& registers_;
  SharedMemory& shared_;
  Barriers& barriers_;
  std::map<ir::BufferId, Value*> turns_;  // by scratch of a cluster's reductions: how often each has run
};

}  // namespace kiln::llvm_ir
