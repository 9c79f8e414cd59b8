// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/element_access.h"

#include "compiler/analysis/access.h"

namespace kiln::llvm_ir {

using ir::Space;

Value* ThreadAccess::Load(ir::ExprId load, Value* arm, Value* mask) {
  const ir::ExprNode& node = pool()[load];
  const ir::BufferId id{node.ref};
  const ir::Buffer& buffer = module()[id];
  Value* condition = memory_.ElementExists(id, node.Args());
  if (buffer.space == Space::kShared || compiler::HasGaps(module(), id) || WatchesReads(id) || memory_.MayLeave(id, node.Args()))
    condition = Both(condition, arm);
  condition = Both(condition, mask);
  return FromMemory(memory_.Load(id, node.Args(), condition), buffer.dtype);
}

// If all threads would make the same access to memory, one thread makes it.
Value* ThreadAccess::WhoWrites(const ir::Stmt& stmt, ir::BufferId written) const {
  const Space space = module()[written].space;
  const bool in_memory = space == Space::kGlobal || space == Space::kShared;
  return in_memory && !context().divergence().IsOfEachThread(stmt) ? b().CreateICmpEQ(thread(), I32(0)) : nullptr;
}

void ThreadAccess::Store(const ir::Stmt& stmt) {
  const auto& store = std::get<ir::Store>(stmt.op);
  When(WhoWrites(stmt, store.buffer), [&] {
    Value* exists = memory_.ElementExists(store.buffer, store.indices);
    // The emulator reports what is read: nothing for a store that does nothing.
    const bool apart = target().emulated;
    When(apart ? exists : nullptr, [&] {
      Value* value = ToMemory(evaluator_.Eval(store.value), module()[store.buffer].dtype);
      memory_.Store(store.buffer, store.indices, value, apart ? nullptr : exists);
    });
  });
}

void ThreadAccess::Update(const ir::Stmt& stmt) {
  const auto& atomic = std::get<ir::Atomic>(stmt.op);
  When(WhoWrites(stmt, atomic.buffer), [&] { memory_.Update(atomic, memory_.ElementExists(atomic.buffer, atomic.indices)); });
}

}  // namespace kiln::llvm_ir
