// SPDX-License-Identifier: Apache-2.0
//
// Barriers of the program's own (ir::Arrive), each an mbarrier.
#pragma once

#include <set>

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

class Signals : Part {
 public:
  Signals(KernelContext& context, Evaluator& evaluator, const Places& places) : Part(context), evaluator_(evaluator), places_(places) { Find(); }

  // Before anything else, and after it.
  void Init();
  void Finish();
  void Lower(const ir::Arrive& arrive);
  void Lower(const ir::Await& await);
  void Lower(const ir::Registers& registers);
  // The barrier that a copy signals.
  Value* Of(const ir::Element& barrier) { return Of(barrier.buffer, barrier.indices); }

 private:
  void Find();
  void FindRegisters();
  void FindFenced(const ir::Block& block);
  void InitBarriers();
  Value* Of(ir::BufferId barriers, const std::vector<ir::ExprId>& indices);
  Value* At(ir::BufferId barriers, Value* index) const;

  Evaluator& evaluator_;
  const Places& places_;
  std::vector<std::pair<ir::BufferId, uint32_t>> barriers_;  // and the statement that allocates them
  int64_t at_start_ = 0;                                     // registers of a thread
  bool fits_ = true;                                         // the registers that groups ask for are there
  std::set<ir::BufferId> of_cluster_;                        // barriers at which threads of other blocks arrive
  std::set<ir::BufferId> of_copies_;                         // barriers at which copies arrive themselves
  bool reaches_others_ = false;                              // the kernel goes to other blocks' shared memory
  bool async_ = false;                                       // products or tensor copies access shared memory beside the threads
  std::set<const ir::Arrive*> fenced_;                       // behind another, since which the thread has touched no shared memory
};

}  // namespace kiln::llvm_ir
