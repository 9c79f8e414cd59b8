// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/stream_sum.h"

#include "compiler/llvm/lower/ops/combine.h"

namespace kiln::llvm_ir {
namespace {

class StreamSums : Part {
 public:
  StreamSums(KernelContext& context, Evaluator& evaluator, Memory& memory, Barriers& barriers)
      : Part(context), evaluator_(evaluator), places_(memory.places()), registers_(memory.registers()), barriers_(barriers) {}

  void Lower(const ir::StreamSum& sum);

 private:
  Evaluator& evaluator_;
  Places& places_;
  Registers& registers_;
  Barriers& barriers_;
};

// partials[block][registers / vector][thread][vector]: what a warp stores at a time is contiguous.
void StreamSums::Lower(const ir::StreamSum& sum) {
  const ir::DType dtype = module()[sum.sum].dtype;
  const int64_t bytes = ir::Bytes(dtype), registers = module()[sum.sum].layout->Registers();
  const int64_t width = sum.vector;
  const int64_t pitch = int64_t(kernel().threads) * width * bytes;
  auto* type = llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(width));
  const llvm::Align align{uint64_t(width * bytes)};
  Value* block = b().CreateZExt(evaluator_.Eval(sum.block), b().getInt64Ty());
  const auto place = [&](Value* of) {
    Value* offset = b().CreateAdd(b().CreateMul(of, I64(registers / width * pitch)),
                                  b().CreateZExt(b().CreateMul(thread(), I32(width * bytes)), b().getInt64Ty()));
    return b().CreateGEP(b().getInt8Ty(), places_.Of(sum.partials), offset);
  };
  const auto flag = [&](Value* of) { return b().CreateGEP(b().getInt32Ty(), places_.Of(sum.flags), of); };
  const auto at = [&](Value* start, int64_t first) { return b().CreateConstGEP1_64(b().getInt8Ty(), start, uint64_t(first / width * pitch)); };
  Value* one = b().CreateICmpEQ(thread(), I32(0));

  llvm::BasicBlock *leave = NewBlock("part.leave"), *test = NewBlock("part.test"), *add = NewBlock("part.add"), *end = NewBlock("part.end");
  Value* parts = b().CreateZExt(evaluator_.Eval(sum.parts), b().getInt64Ty());
  b().CreateCondBr(evaluator_.Eval(sum.owns), test, leave);

  b().SetInsertPoint(leave);
  Value* own = place(block);
  for (int64_t r = 0; r < registers; r += width) {
    Value* vector = llvm::PoisonValue::get(type);
    for (int64_t i = 0; i < width; ++i) vector = b().CreateInsertElement(vector, registers_.Load(sum.sum, r + i), uint64_t(i));
    b().CreateAlignedStore(vector, at(own, r), align);
  }
  barriers_.Wait();
  When(one, [&] { device().RaiseFlag(flag(block)); });
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
  When(one, [&] { device().TakeFlag(flag(other)); });
  barriers_.Wait();
  Value* theirs = place(other);
  for (int64_t r = 0; r < registers; r += width) {
    Value* vector = b().CreateAlignedLoad(type, at(theirs, r), align);
    for (int64_t i = 0; i < width; ++i) {
      Value* value = FromMemory(b().CreateExtractElement(vector, uint64_t(i)), dtype);
      registers_.Store(sum.sum, r + i,
                       ToMemory(Combine(b(), ir::ReduceKind::kSum, dtype, FromMemory(registers_.Load(sum.sum, r + i), dtype), value), dtype));
    }
  }
  part->addIncoming(next, b().GetInsertBlock());
  b().CreateBr(head);
  b().SetInsertPoint(end);
}

}  // namespace

void LowerStreamSum(KernelContext& context, Evaluator& evaluator, Memory& memory, Barriers& barriers, const ir::StreamSum& sum) {
  StreamSums(context, evaluator, memory, barriers).Lower(sum);
}

}  // namespace kiln::llvm_ir
