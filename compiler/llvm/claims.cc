// SPDX-License-Identifier: Apache-2.0
//
// On the emulator, a parallel loop declares which elements in memory it writes: iteration by iteration, whatever its layout is. The
// emulator then reports an element that no thread wrote.
#include <algorithm>

#include "compiler/analysis/contains.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {
namespace {

struct Written {
  ir::BufferId buffer;
  const std::vector<ir::ExprId>* indices;
};

// nullopt: the statement is no store or atomic, so it writes no element for certain.
std::optional<Written> WrittenBy(const ir::Stmt& stmt) {
  if (const auto* store = std::get_if<ir::Store>(&stmt.op)) return Written{store->buffer, &store->indices};
  if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op)) return Written{atomic->buffer, &atomic->indices};
  return std::nullopt;
}

}  // namespace

// Whether one thread can tell, before the loop runs, where the store goes. A loop that reads the buffer it writes does not count: it may
// store the value that an element already has, and LLVM drops such a store.
bool KernelLowering::IsClaimed(const ir::For& loop, const ir::Stmt& stmt) const {
  const std::optional<Written> written = WrittenBy(stmt);
  if (!written || std::ranges::any_of(loop.body, [&](const ir::Stmt& other) { return Reads(other, written->buffer); })) return false;
  const ir::Space space = module_[written->buffer].space;
  if (space != ir::Space::kGlobal && space != ir::Space::kShared) return false;
  return std::ranges::none_of(*written->indices, [&](ir::ExprId index) {
    return divergence_.Differs(index) || compiler::Contains(pool(), index, [&](ir::ExprId part) { return pool()[part].op == ir::ExprOp::kLoad; });
  });
}

bool KernelLowering::Reads(const ir::Stmt& stmt, ir::BufferId buffer) const {
  bool reads = false;
  ir::ForEachExpr(stmt.op, [&](ir::ExprId id) {
    reads |= compiler::Contains(pool(), id,
                                [&](ir::ExprId part) { return pool()[part].op == ir::ExprOp::kLoad && ir::BufferId(pool()[part].ref) == buffer; });
  });
  return reads;
}

bool KernelLowering::BeginClaim(const ir::For& loop) {
  if (!context_.target->emulated || slice_ != nullptr) return false;
  if (!std::ranges::all_of(loop.body, [](const ir::Stmt& stmt) { return WrittenBy(stmt).has_value(); })) return false;
  if (std::ranges::none_of(loop.body, [&](const ir::Stmt& stmt) { return IsClaimed(loop, stmt); })) return false;
  When(device_->BeginClaim(threads_.Count()), [&] { ClaimIterations(loop); });
  return true;
}

void KernelLowering::ClaimIterations(const ir::For& loop) {
  const std::vector<int64_t> extents = compiler::ExtentsOf(module_, loop);
  int64_t count = 1;
  for (int64_t extent : extents) count *= extent;
  const std::map<uint32_t, Value*> outer = vars_;
  llvm::BasicBlock *before = b().GetInsertBlock(), *body = NewBlock("claim"), *end = NewBlock("claim.end");
  b().CreateBr(body);
  b().SetInsertPoint(body);
  llvm::PHINode* number = b().CreatePHI(b().getInt32Ty(), 2);
  number->addIncoming(I32(0), before);
  Value* rest = number;
  for (size_t v = extents.size(); v-- > 0;) {
    const ir::VarId var = loop.vars[v];
    vars_[ir::Index(var)] = b().CreateZExtOrTrunc(b().CreateURem(rest, I32(extents[v])), ValueType(llvm(), module_[var].dtype));
    rest = b().CreateUDiv(rest, I32(extents[v]));
  }
  for (const ir::Stmt& stmt : loop.body) {
    if (!IsClaimed(loop, stmt)) continue;
    const Written written = *WrittenBy(stmt);
    When(InsideOf(written.buffer, *written.indices),
         [&] { device_->Claim(ElementPointer(written.buffer, *written.indices), ir::Bytes(module_[written.buffer].dtype)); });
  }
  Value* next = b().CreateAdd(number, I32(1));
  number->addIncoming(next, b().GetInsertBlock());
  b().CreateCondBr(b().CreateICmpULT(next, I32(count)), body, end);
  b().SetInsertPoint(end);
  vars_ = outer;
}

}  // namespace kiln::llvm_ir
