// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/claims.h"

#include <algorithm>
#include <optional>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/register_map.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {
namespace {

struct Written {
  ir::BufferId buffer;
  const std::vector<ir::ExprId>* indices;
};

// nullopt: the statement is no store or atomic, so it writes no element of the block for certain.
std::optional<Written> WrittenBy(const ir::Stmt& stmt) {
  if (const auto* store = std::get_if<ir::Store>(&stmt.op)) return Written{store->buffer, &store->indices};
  if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op); atomic != nullptr && !atomic->block) return Written{atomic->buffer, &atomic->indices};
  return std::nullopt;
}

class Claims : Part {
 public:
  Claims(KernelContext& context, Evaluator& evaluator, Memory& memory) : Part(context), evaluator_(evaluator), memory_(memory) {}

  bool Begin(const ir::For& loop);

 private:
  bool IsClaimed(const ir::For& loop, const ir::Stmt& stmt) const;
  bool Reads(const ir::Stmt& stmt, ir::BufferId buffer) const;
  void ClaimIterations(const ir::For& loop);

  Evaluator& evaluator_;
  Memory& memory_;
};

// Whether one thread can tell, before the loop runs, where the store goes. A loop that reads the buffer it writes does not count: it may
// store the value that an element already has, and LLVM drops such a store.
bool Claims::IsClaimed(const ir::For& loop, const ir::Stmt& stmt) const {
  const std::optional<Written> written = WrittenBy(stmt);
  if (!written || std::ranges::any_of(loop.body, [&](const ir::Stmt& other) { return Reads(other, written->buffer); })) return false;
  const ir::Space space = module()[written->buffer].space;
  if (space != ir::Space::kGlobal && space != ir::Space::kShared) return false;
  return std::ranges::none_of(*written->indices, [&](ir::ExprId index) {
    return context().divergence().Differs(index) ||
           compiler::Contains(pool(), index, [&](ir::ExprId part) { return pool()[part].op == ir::ExprOp::kLoad; });
  });
}

bool Claims::Reads(const ir::Stmt& stmt, ir::BufferId buffer) const {
  bool reads = false;
  ir::ForEachExpr(stmt.op, [&](ir::ExprId id) {
    reads |= compiler::Contains(pool(), id,
                                [&](ir::ExprId part) { return pool()[part].op == ir::ExprOp::kLoad && ir::BufferId(pool()[part].ref) == buffer; });
  });
  return reads;
}

bool Claims::Begin(const ir::For& loop) {
  if (!target().emulated || threads().slice != nullptr) return false;
  if (!std::ranges::all_of(loop.body, [](const ir::Stmt& stmt) { return WrittenBy(stmt).has_value(); })) return false;
  if (std::ranges::none_of(loop.body, [&](const ir::Stmt& stmt) { return IsClaimed(loop, stmt); })) return false;
  When(device().BeginClaim(threads().range.Count()), [&] { ClaimIterations(loop); });
  return true;
}

void Claims::ClaimIterations(const ir::For& loop) {
  const std::vector<int64_t> extents = compiler::ExtentsOf(module(), loop);
  int64_t count = 1;
  for (int64_t extent : extents) count *= extent;
  const Evaluator::VariableScope variables(evaluator_);
  llvm::BasicBlock *before = b().GetInsertBlock(), *body = NewBlock("claim"), *end = NewBlock("claim.end");
  b().CreateBr(body);
  b().SetInsertPoint(body);
  llvm::PHINode* number = b().CreatePHI(b().getInt32Ty(), 2);
  number->addIncoming(I32(0), before);
  Value* rest = number;
  for (size_t v = extents.size(); v-- > 0;) {
    const ir::VarId var = loop.vars[v];
    evaluator_.Bind(var, b().CreateZExtOrTrunc(b().CreateURem(rest, I32(extents[v])), ValueType(llvm(), module()[var].dtype)));
    rest = b().CreateUDiv(rest, I32(extents[v]));
  }
  for (const ir::Stmt& stmt : loop.body) {
    if (!IsClaimed(loop, stmt)) continue;
    const Written written = *WrittenBy(stmt);
    When(memory_.InsideOf(written.buffer, *written.indices),
         [&] { device().Claim(memory_.ElementPointer(written.buffer, *written.indices), ir::Bytes(module()[written.buffer].dtype)); });
  }
  Value* next = b().CreateAdd(number, I32(1));
  number->addIncoming(next, b().GetInsertBlock());
  b().CreateCondBr(b().CreateICmpULT(next, I32(count)), body, end);
  b().SetInsertPoint(end);
}

}  // namespace

bool BeginClaim(KernelContext& context, Evaluator& evaluator, Memory& memory, const ir::For& loop) {
  return Claims(context, evaluator, memory).Begin(loop);
}

}  // namespace kiln::llvm_ir
