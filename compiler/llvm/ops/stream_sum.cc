// SPDX-License-Identifier: Apache-2.0
//
// Blocks that share the steps of a tile (grid/stream_k.h): parts of its sum pass through global memory. A thread of the owner adds what
// the thread of the same number in another block left. The program alone thus determines the order of all additions.
#include "compiler/llvm/kernel_lowering.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

namespace {

constexpr int64_t kVectorBytes = 16;

}  // namespace

// partials[block][registers / vector][thread][vector]: what a warp stores at a time is contiguous.
void KernelLowering::LowerStreamSum(const ir::StreamSum& sum) {
  const ir::DType dtype = module_[sum.sum].dtype;
  const int64_t bytes = ir::Bytes(dtype), registers = module_[sum.sum].layout->Registers();
  const int64_t width = registers % (kVectorBytes / bytes) == 0 ? kVectorBytes / bytes : 1;
  const int64_t pitch = int64_t(kernel_.threads) * width * bytes;
  auto* type = llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(width));
  const llvm::Align align{uint64_t(width * bytes)};
  Value* block = b().CreateZExt(Eval(sum.block), b().getInt64Ty());
  const auto place = [&](Value* of) {
    Value* offset = b().CreateAdd(b().CreateMul(of, I64(registers / width * pitch)),
                                  b().CreateZExt(b().CreateMul(thread_, I32(width * bytes)), b().getInt64Ty()));
    return b().CreateGEP(b().getInt8Ty(), memory_.at(ir::Index(sum.partials)), offset);
  };
  const auto flag = [&](Value* of) { return b().CreateGEP(b().getInt32Ty(), memory_.at(ir::Index(sum.flags)), of); };
  const auto at = [&](Value* start, int64_t first) { return b().CreateConstGEP1_64(b().getInt8Ty(), start, uint64_t(first / width * pitch)); };
  Value* one = b().CreateICmpEQ(thread_, I32(0));

  llvm::BasicBlock *leave = NewBlock("part.leave"), *test = NewBlock("part.test"), *add = NewBlock("part.add"), *end = NewBlock("part.end");
  Value* parts = b().CreateZExt(Eval(sum.parts), b().getInt64Ty());
  b().CreateCondBr(Eval(sum.owns), test, leave);

  b().SetInsertPoint(leave);
  Value* own = place(block);
  for (int64_t r = 0; r < registers; r += width) {
    Value* vector = llvm::PoisonValue::get(type);
    for (int64_t i = 0; i < width; ++i) vector = b().CreateInsertElement(vector, LoadRegister(sum.sum, r + i), uint64_t(i));
    b().CreateAlignedStore(vector, at(own, r), align);
  }
  BlockBarrier();
  When(one, [&] { device_->RaiseFlag(flag(block)); });
  b().CreateBr(end);

  b().SetInsertPoint(test);
  llvm::BasicBlock* before = b().GetInsertBlock();
  llvm::BasicBlock* head = NewBlock("part.next");
  b().CreateBr(head);
  b().SetInsertPoint(head);
  llvm::PHINode* part = b().CreatePHI(b().getInt64Ty(), 2);
  part->addIncoming(I64(0), before);
  b().CreateCondBr(b().CreateICmpULT(part, parts), add, end);
  b().SetInsertPoint(add);
  Value* next = b().CreateAdd(part, I64(1));
  Value* other = b().CreateSub(block, next);
  When(one, [&] { device_->TakeFlag(flag(other)); });
  BlockBarrier();
  Value* theirs = place(other);
  for (int64_t r = 0; r < registers; r += width) {
    Value* vector = b().CreateAlignedLoad(type, at(theirs, r), align);
    for (int64_t i = 0; i < width; ++i) {
      Value* value = FromMemory(b().CreateExtractElement(vector, uint64_t(i)), dtype);
      StoreRegister(sum.sum, r + i, ToMemory(Combine(ir::ReduceKind::kSum, dtype, FromMemory(LoadRegister(sum.sum, r + i), dtype), value), dtype));
    }
  }
  part->addIncoming(next, b().GetInsertBlock());
  b().CreateBr(head);
  b().SetInsertPoint(end);
}

}  // namespace kiln::llvm_ir
