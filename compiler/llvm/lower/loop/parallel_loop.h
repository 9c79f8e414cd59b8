// SPDX-License-Identifier: Apache-2.0
//
// A parallel loop while it is lowered: each thread runs the iterations its layout gives it, unrolled over the layout's registers. Stores of
// loads and arithmetic go in runs of neighbouring registers, so that memory is accessed in vectors; bodies with control flow go iteration by
// iteration.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "compiler/llvm/lower/element_access.h"
#include "compiler/llvm/lower/loop/neighbours.h"

namespace kiln::llvm_ir {

class ParallelLoop final : public ElementAccess, Part {
 public:
  // `loop` must outlive this. The expressions evaluated while this exists are the loop's.
  ParallelLoop(KernelContext& context, Evaluator& evaluator, Memory& memory, const compiler::ThreadLoop& loop);

  // `lower_body` lowers the body of `stmt` for the iteration entered last, and accesses elements through this.
  void Lower(const ir::Stmt& stmt, const std::function<void(const ir::Block&)>& lower_body);

  Value* Load(ir::ExprId load, Value* arm, Value* mask) override { return elements_.Load(load, arm, mask); }
  Value* Loaded(ir::ExprId id) const override { return elements_.Loaded(id); }
  void Store(const ir::Stmt& stmt) override { StoreElement(std::get<ir::Store>(stmt.op)); }
  void Update(const ir::Stmt& stmt) override;

 private:
  void MakeAddresses(const ir::Stmt& stmt);
  void LowerBranch(const ir::Stmt& stmt, const ir::If& branch, int64_t first, int64_t count);
  void LowerTogether(std::span<const ir::Stmt> stores, int64_t first, int64_t count, std::optional<ir::ExprId> cond);
  void LowerOneByOne(const ir::Stmt& stmt, std::optional<ir::ExprId> cond, std::span<const ir::Stmt> stores, int64_t first, int64_t count);
  void LowerParted(const ir::Stmt& stmt, std::optional<ir::ExprId> cond, std::span<const ir::Stmt> stores, int64_t first, int64_t count);
  void LowerElements(const std::function<void(const ir::Block&)>& lower_body);
  void LowerChunks();
  void LowerRuns(const ir::Block& body);
  // `cond`: the store is made only where it holds.
  void LowerChunk(const ir::Store& store, int64_t first, int64_t count, std::optional<ir::ExprId> cond = {});
  void LowerAsyncChunk(const ir::Store& store, int64_t first, int64_t count);
  void LowerGather(const ir::Stmt& stmt, const ir::Store& store);
  // Where the elements of an async store come from, whether they are read (i1; nullptr: always), and how many of them (i32; nullptr: all). Others
  // become zero.
  struct Source {
    Value* pointer;
    Value* exists;
    Value* count;
  };
  static bool IsClipped(const ir::Store& store);  // a copy that stops at the end of a row
  ir::Read ReadOf(const ir::Store& store) const;
  const ElementAddress& SourceOf(const ir::Store& store);
  Source AsyncSource(const ir::Store& store, int64_t reg);
  void CopyAsync(const ir::Store& store, int64_t first, int64_t count, const Source& source);
  void StoreElement(const ir::Store& store);
  void StoreRegister(const ir::Store& store, int64_t reg, Value* v);
  Value* WhereWritten(ir::Space space, Value* condition) const;

  Evaluator& evaluator_;
  Memory& memory_;
  const compiler::ThreadLoop& loop_;
  Iterations iterations_;
  Addresses addresses_;
  Vectors vectors_;
  Elements elements_;
  Neighbours neighbours_;
  bool all_inside_ = false;  // what the loop copies
  const Evaluator::AccessScope access_;
};

}  // namespace kiln::llvm_ir
