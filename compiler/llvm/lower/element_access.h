// SPDX-License-Identifier: Apache-2.0
//
// How statements and expressions access single elements. Outside of parallel loops each thread accesses what its indices say (ThreadAccess);
// in a parallel loop, an iteration of it does (loop/parallel_loop.h).
#pragma once

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

class ElementAccess : public LoadSource {
 public:
  // A statement that is an ir::Store, or an ir::Atomic on global or shared memory.
  virtual void Store(const ir::Stmt& stmt) = 0;
  virtual void Update(const ir::Stmt& stmt) = 0;
};

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
