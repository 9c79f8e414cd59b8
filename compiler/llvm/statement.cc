// SPDX-License-Identifier: Apache-2.0
//
// Statements that are no tile operations: control flow, barriers, stores and atomic operations of single elements.
#include <fmt/format.h>

#include <bit>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/analysis/unrolled.h"
#include "compiler/llvm/kernel_lowering.h"
#include "compiler/rules/reduce.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

using ir::Overloaded;
using ir::Space;

void KernelLowering::BlockBarrier(bool by_group) {
  // wgmma of other warps or tensor stores may read what this thread wrote.
  if (has_wgmma_ || has_stores_) device_->FenceAsyncProxy();
  if (!threads_.IsSame(compiler::AllThreads(kernel_))) return RangeBarrier();
  if (kernel_.producers == 0) return device_->Barrier();
  if (!by_group) return device_->NamedBarrier(kRoleBarrier, kernel_.threads);
  Value* group = device_->Uniform(b().CreateUDiv(thread_, I32(kGroupThreads)));
  for (uint32_t g = 0; g < kernel_.threads / kGroupThreads; ++g) {
    When(b().CreateICmpEQ(group, I32(g)), [&] { device_->NamedBarrier(kRoleBarrier + 1 + int(g), kGroupThreads); });
  }
}

// A barrier of the threads of the branch only.
void KernelLowering::RangeBarrier() {
  const uint32_t lanes = context_.target->warp_size;
  if (threads_.barrier != 0) return device_->NamedBarrier(int(threads_.barrier), threads_.Count());
  if (compiler::IsWithinOneWarp(threads_, lanes)) return device_->LanesBarrier(threads_.begin % lanes, threads_.Count());
  diagnostics_.Internal("threads of a branch meet and have no barrier", loc_);
}

void KernelLowering::LowerBlock(const ir::Block& block) {
  for (size_t i = 0; i < block.size();) {
    const std::span<const ir::Stmt> rest = std::span(block).subspan(i);
    const size_t together = slice_ == nullptr ? compiler::ExchangeTogether(rest) : 0;
    together == 0 ? LowerStmt(rest[0]) : LowerReduces(rest.first(together));
    if (IsTooLong()) return;
    i += std::max<size_t>(together, 1);
  }
}

// A statement that a pass inserted has no line of its own and keeps that of the statement around.
void KernelLowering::EnterStmt(const ir::Stmt& stmt) {
  if (stmt.loc.line == 0) return;
  loc_ = stmt.loc;
  device_->SetLocation(stmt.loc.line);
}

bool KernelLowering::IsTooLong() {
  if (code_before_ + builder_.getInserter().code() <= context_.max_code()) return false;
  if (!std::exchange(too_long_, true)) TooMuchCode(context_, diagnostics_, loc_);
  return true;
}

void KernelLowering::LowerStmt(const ir::Stmt& stmt) {
  if (slice_ != nullptr && !slice_->Runs(stmt)) return;
  EnterStmt(stmt);
  std::visit(Overloaded{
                 [&](const ir::Alloc& op) {
                   const bool again = !loops_.empty() && kernel_.producers == 0 && module_[op.buffer].versions == 1;
                   if (again && module_[op.buffer].space == Space::kShared) device_->Allocate(ir::Index(op.buffer));
                 },
                 [&](const ir::For& op) { LowerFor(stmt, op); },
                 [&](const ir::If& op) { LowerIf(op); },
                 [&](const ir::While& op) { LowerWhile(op); },
                 [&](const ir::Let& op) {
                   vars_[ir::Index(op.var)] = Eval(op.value);
                   facts_.Bind(op);
                 },
                 [&](const ir::Store& op) { Once(stmt, op.buffer, [&] { LowerStore(op); }); },
                 [&](const ir::Assume& op) { facts_.Assume(op.cond); },
                 [&](const ir::Copy& op) { LowerTensorCopy(op); },
                 [&](const ir::Gemm& op) { LowerGemm(op); },
                 [&](const ir::Elementwise auto&) { diagnostics_.Internal(fmt::format("a {} was left to lowering", ir::Name(stmt.op)), stmt.loc); },
                 [&](const ir::Reduce&) { LowerReduces({&stmt, 1}); },
                 [&](const ir::Atomic& op) { Once(stmt, op.buffer, [&] { LowerAtomic(op); }); },
                 [&](const ir::Barrier& op) { BlockBarrier(op.by_group); },
                 [&](const ir::Break&) {
                   b().CreateBr(loops_.back().end);
                   b().SetInsertPoint(NewBlock("unreachable"));
                 },
                 [&](const ir::Continue&) {
                   b().CreateBr(loops_.back().next);
                   b().SetInsertPoint(NewBlock("unreachable"));
                 },
                 [&](const ir::AsyncCommit&) { device_->AsyncCommit(); },
                 [&](const ir::AsyncWait& op) {
                   if (op.product) return LowerProductWait(*op.product, op.pending);
                   if (op.stores) return device_->TensorStoreWait(op.pending, /*read_only=*/true);
                   device_->AsyncWait(op.pending);
                 },
                 [&](const ir::RingStep& op) { LowerRingStep(op); },
                 [&](const ir::PairSum& op) { LowerPairSum(op); },
                 [&](const ir::StreamSum& op) { LowerStreamSum(op); },
             },
             stmt.op);
}

// If all threads would make the same access to memory, one thread makes it.
void KernelLowering::Once(const ir::Stmt& stmt, ir::BufferId written, const std::function<void()>& lower) {
  const Space space = module_[written].space;
  const bool in_memory = space == Space::kGlobal || space == Space::kShared;
  When(in_memory && element_ == nullptr && !divergence_.IsOfEachThread(stmt) ? b().CreateICmpEQ(thread_, I32(0)) : nullptr, lower);
}

void KernelLowering::LowerFor(const ir::Stmt& stmt, const ir::For& loop) {
  const compiler::Facts outer = facts_;
  facts_.EnterLoop(loop);
  const std::optional<int64_t> extent = loop.extents.size() == 1 ? pool().ConstInt(loop.extents[0]) : std::nullopt;
  if (loop.kind == ir::LoopKind::kParallel) {
    LowerParallel(stmt, loop);
  } else if (extent && (*extent <= 1 || compiler::IsWrittenOut(module_, loop, context_.max_unrolled()))) {
    LowerUnrolled(loop, *extent);
  } else {
    LowerSerial(loop);
  }
  facts_ = outer;
}

void KernelLowering::LowerUnrolled(const ir::For& loop, int64_t extent) {
  const ir::DType type = module_[loop.vars[0]].dtype;
  llvm::BasicBlock* end = NewBlock("unrolled.end");
  for (int64_t i = 0; i < extent; ++i) {
    vars_[ir::Index(loop.vars[0])] = llvm::ConstantInt::get(ValueType(llvm(), type), uint64_t(i));
    llvm::BasicBlock* next = NewBlock("unrolled.next");
    loops_.push_back({next, end});
    LowerBlock(loop.body);
    loops_.pop_back();
    b().CreateBr(next);
    b().SetInsertPoint(next);
    if (too_long_) break;
  }
  b().CreateBr(end);
  b().SetInsertPoint(end);
}

void KernelLowering::LowerSerial(const ir::For& loop) {
  Value* extent = Eval(loop.extents[0]);
  llvm::Type* type = extent->getType();
  llvm::BasicBlock *before = b().GetInsertBlock(), *body = NewBlock("loop"), *next = NewBlock("loop.next"), *end = NewBlock("loop.end");
  Value* zero = llvm::ConstantInt::get(type, 0);
  b().CreateCondBr(b().CreateICmpSGT(extent, zero), body, end);
  b().SetInsertPoint(body);
  llvm::PHINode* var = b().CreatePHI(type, 2, module_[loop.vars[0]].name);
  var->addIncoming(zero, before);
  b().SetInsertPoint(next);
  Value* increment = b().CreateAdd(var, llvm::ConstantInt::get(type, 1), "", /*NUW=*/true, /*NSW=*/true);
  // Added before the body: until the variable has its increment, LLVM's facts about it would say that it is 0.
  var->addIncoming(increment, next);
  b().CreateCondBr(b().CreateICmpSLT(increment, extent), body, end);
  b().SetInsertPoint(body);
  vars_[ir::Index(loop.vars[0])] = var;
  loops_.push_back({next, end});
  LowerBlock(loop.body);
  loops_.pop_back();
  b().CreateBr(next);
  b().SetInsertPoint(end);
}

void KernelLowering::LowerIf(const ir::If& branch) {
  Value* condition = Eval(branch.cond);
  if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(condition)) {
    constant->isZero() ? LowerBranch(branch.else_body, branch.else_threads) : LowerBranch(branch.then_body, branch.then_threads);
    return;
  }
  llvm::BasicBlock *then = NewBlock("if.then"), *otherwise = NewBlock("if.else"), *end = NewBlock("if.end");
  b().CreateCondBr(condition, then, otherwise);
  const compiler::Facts outer = facts_;
  facts_.Assume(branch.cond);
  b().SetInsertPoint(then);
  LowerBranch(branch.then_body, branch.then_threads);
  b().CreateBr(end);
  facts_ = outer;
  b().SetInsertPoint(otherwise);
  LowerBranch(branch.else_body, branch.else_threads);
  b().CreateBr(end);
  facts_ = outer;
  b().SetInsertPoint(end);
}

// A branch counts its threads from the first that enters it.
void KernelLowering::LowerBranch(const ir::Block& body, const std::optional<ir::ThreadRange>& threads) {
  if (!threads || threads->IsSame(threads_)) return LowerBlock(body);
  const ir::ThreadRange outer = std::exchange(threads_, *threads);
  Value* const thread = thread_;
  Value* const group = std::exchange(warp_group_, nullptr);
  const uint32_t count = threads->Count();
  const bool masks = std::has_single_bit(count) && threads->begin % count == 0;  // known to be less than `count`
  thread_ = masks ? b().CreateAnd(block_thread_, I32(count - 1)) : b().CreateSub(block_thread_, I32(threads->begin));
  LowerBlock(body);
  threads_ = outer, thread_ = thread, warp_group_ = group;
}

void KernelLowering::LowerWhile(const ir::While& loop) {
  llvm::BasicBlock *head = NewBlock("while"), *body = NewBlock("while.body"), *end = NewBlock("while.end");
  b().CreateBr(head);
  b().SetInsertPoint(head);
  b().CreateCondBr(Eval(loop.cond), body, end);
  b().SetInsertPoint(body);
  loops_.push_back({head, end});
  LowerBlock(loop.body);
  loops_.pop_back();
  b().CreateBr(head);
  b().SetInsertPoint(end);
}

void KernelLowering::LowerStore(const ir::Store& store) {
  const ir::Buffer& buffer = module_[store.buffer];
  Value* value = ToMemory(Eval(store.value), buffer.dtype);
  if (buffer.space == Space::kFragment && element_ != nullptr) {
    const ElementAddress& address = AddressOf(store.buffer, store.indices);
    StoreElement(store, address.registers[size_t(element_->current)], value);
    return;
  }
  Value* condition = buffer.space == Space::kGlobal ? InsideOf(store.buffer, store.indices) : nullptr;
  const bool shared_by_block = buffer.space == Space::kGlobal || buffer.space == Space::kShared;
  if (element_ != nullptr && shared_by_block) {
    for (Value* more : {element_->first_copy, element_->guard})
      if (more != nullptr) condition = condition == nullptr ? more : b().CreateAnd(condition, more);
  } else if (element_ != nullptr) {
    condition = element_->guard;  // each thread has an array of its own, so each copy of the iteration stores
  }
  CheckInside(store.buffer, store.indices, condition, /*write=*/true);
  Value* pointer = ElementPointer(store.buffer, store.indices);
  When(condition, [&] { b().CreateAlignedStore(value, pointer, AlignOf(store.buffer, 1)); });
}

void KernelLowering::LowerAtomic(const ir::Atomic& atomic) {
  const ir::Buffer& buffer = module_[atomic.buffer];
  if (buffer.space != Space::kGlobal && buffer.space != Space::kShared) {
    Unsupported(fmt::format("an atomic on '{}' in {} memory", buffer.name, ir::Name(buffer.space)),
                "atomics work on global and shared buffers; elsewhere use an ordinary store");
    return;
  }
  Value* value = Eval(atomic.value);
  Value* condition = buffer.space == Space::kGlobal ? InsideOf(atomic.buffer, atomic.indices) : nullptr;
  if (element_ != nullptr) {
    for (Value* more : {element_->first_copy, element_->guard})
      if (more != nullptr) condition = condition == nullptr ? more : b().CreateAnd(condition, more);
  }
  constexpr AtomicOp kOps[] = {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin};
  CheckInside(atomic.buffer, atomic.indices, condition, /*write=*/true);
  Value* pointer = ElementPointer(atomic.buffer, atomic.indices);
  When(condition, [&] { device_->Atomic(kOps[int(atomic.kind) - 1], buffer.dtype, pointer, value); });
}

}  // namespace kiln::llvm_ir
