// SPDX-License-Identifier: Apache-2.0
//
// Statements: control flow here; elements, loops and tile operations by the parts that know them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/llvm/lower/barriers.h"
#include "compiler/llvm/lower/element_access.h"
#include "compiler/llvm/lower/ops/calls.h"
#include "compiler/llvm/lower/ops/reductions.h"
#include "compiler/llvm/lower/ops/rings.h"
#include "compiler/llvm/lower/ops/signals.h"
#include "compiler/llvm/lower/ops/tensor_copies.h"

namespace kiln::llvm_ir {

class Statements : Part {
 public:
  Statements(KernelContext& context, Evaluator& evaluator, Memory& memory, Barriers& barriers, Reductions& reductions, Rings& rings, Signals& signals,
             TensorCopies& copies)
      : Part(context),
        evaluator_(evaluator),
        memory_(memory),
        barriers_(barriers),
        reductions_(reductions),
        rings_(rings),
        signals_(signals),
        copies_(copies),
        calls_(context, evaluator, memory),
        thread_access_(context, evaluator, memory),
        access_(evaluator, thread_access_) {}

  void LowerBlock(const ir::Block& block);

 private:
  struct LoopBlocks {
    llvm::BasicBlock* next;
    llvm::BasicBlock* end;
  };

  void LowerStmt(const ir::Stmt& stmt);
  void LowerFor(const ir::Stmt& stmt, const ir::For& loop);
  void LowerParallel(const ir::Stmt& stmt);
  void LowerSerial(const ir::For& loop);
  void LowerIterations(const ir::For& loop, Value* first, Value* limit, int64_t together);
  void LowerUnrolled(const ir::For& loop, int64_t extent);
  void LowerWhile(const ir::While& loop);
  void LowerLoopBody(const ir::Block& body, const LoopBlocks& blocks);
  void LowerIf(const ir::If& branch);
  void LowerBranch(const ir::Block& body, const std::optional<ir::ThreadRange>& threads);
  void LeaveTo(llvm::BasicBlock* block);
  void LowerAtomic(const ir::Stmt& stmt, const ir::Atomic& atomic);
  void Wait(const ir::AsyncWait& wait);
  void AllocateAgain(ir::BufferId buffer);

  Evaluator& evaluator_;
  Memory& memory_;
  Barriers& barriers_;
  Reductions& reductions_;
  Rings& rings_;
  Signals& signals_;
  TensorCopies& copies_;
  Calls calls_;
  ThreadAccess thread_access_;
  const Evaluator::AccessScope access_;
  std::vector<LoopBlocks> loops_;  // around the statement, without those of parallel loops
};

}  // namespace kiln::llvm_ir
