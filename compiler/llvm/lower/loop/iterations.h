// SPDX-License-Identifier: Apache-2.0
//
// The iterations of a parallel loop as one thread runs them, one for each register of the loop's layout.
#pragma once

#include <cstdint>
#include <span>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/evaluator.h"

namespace kiln::llvm_ir {

class Iterations : Part {
 public:
  // `loop` must outlive this.
  Iterations(KernelContext& context, Evaluator& evaluator, const compiler::ThreadLoop& loop)
      : Part(context), evaluator_(evaluator), loop_(loop), thread_part_(ThreadParts(loop.layout)), first_copy_(IsFirstCopy(loop.layout)) {}

  const compiler::ThreadLoop& loop() const { return loop_; }
  const ir::Indices& RegisterPart(int64_t reg) const { return loop_.parts[size_t(reg)]; }  // what the register adds to each variable
  Value* ThreadPart(const compiler::LoopDigits& digits) const;                             // what the thread adds to some digits; i32
  Value* first_copy() const { return first_copy_; }  // i1: this thread holds the first copy of its elements; nullptr: no copies

  // The loop's variables have the values of the register's iteration from here on.
  void Enter(int64_t reg);
  int64_t current() const { return current_; }  // the register entered last

  // Whether the register's iteration exists (i1; nullptr: always).
  Value* Exists(int64_t reg) const;
  // What that says of the registers under way: where it does not hold, they access nothing.
  Value* guard() const { return guard_; }
  void SetGuard(Value* guard) { guard_ = guard; }

  // Whether the indices use a variable that runs beyond its extent; iterations beyond it would touch other elements than those within.
  bool IsOfPadding(std::span<const ir::ExprId> indices) const;
  // Whether iterations beyond the loop's extents fall on padding of the fragment that is stored to.
  bool PaddingIsTheSame(const ir::Store& store) const;

 private:
  Evaluator& evaluator_;
  const compiler::ThreadLoop& loop_;
  const Values thread_part_;  // i32, of each variable
  Value* const first_copy_;
  int64_t current_ = 0;
  Value* guard_ = nullptr;
};

}  // namespace kiln::llvm_ir
