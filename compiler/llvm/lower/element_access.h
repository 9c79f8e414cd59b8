// SPDX-License-Identifier: Apache-2.0
//
// Outside of parallel loops each thread accesses the elements that its indices say.
#pragma once

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

class ThreadAccess final : public ElementAccess, Part {
 public:
  ThreadAccess(KernelContext& context, Evaluator& evaluator, Memory& memory) : Part(context), evaluator_(evaluator), memory_(memory) {}

  Value* Load(ir::ExprId load, Value* arm, Value* mask) override;
  void Store(const ir::Stmt& stmt) override;
  void Update(const ir::Stmt& stmt) override;

 private:
  Value* WhoWrites(const ir::Stmt& stmt, ir::BufferId written) const;

  Evaluator& evaluator_;
  Memory& memory_;
};

}  // namespace kiln::llvm_ir
