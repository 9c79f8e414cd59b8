// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/stream_sum.h"

#include <vector>

#include "compiler/llvm/lower/ops/combine.h"
#include "compiler/rules/stream_cost.h"

namespace kiln::llvm_ir {
namespace {

class StreamSums : Part {
 public:
  StreamSums(KernelContext& context, Evaluator& evaluator, Memory& memory, Barriers& barriers)
      : Part(context), evaluator_(evaluator), places_(memory.places()), registers_(memory.registers()), barriers_(barriers) {}

  void Lower(const ir::StreamSum& sum);

 private:
  template <typename Body>
  void Count(Value* first, int64_t step, Value* end, Body&& body);

  Evaluator& evaluator_;
  Places& places_;
  Registers& registers_;
  Barriers& barriers_;
};

// partials[block][registers / vector][thread][vector]: what a warp stores at a time is contiguous. Each thread waits for another block's flag, and
// loads of several parts are under way at a time: one after the other, each part would take the L2's latency twice.
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

  llvm::BasicBlock *leave = NewBlock("part.leave"), *test = NewBlock("part.test"), *take = NewBlock("part.take"), *end = NewBlock("part.end");
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
  b().CreateCondBr(b().CreateICmpNE(parts, I64(0)), take, end);
  b().SetInsertPoint(take);
  const auto number = [&](Value* part) { return b().CreateSub(b().CreateSub(block, I64(1)), part); };
  for (int64_t first = 0; first < module().ShapeOf(sum.flags)[0]; first += kernel().threads) {
    Value* part = b().CreateAdd(b().CreateZExt(thread(), b().getInt64Ty()), I64(first));
    When(b().CreateICmpULT(part, parts), [&] { device().TakeFlag(flag(number(part))); });
  }
  barriers_.Wait();

  const int64_t together = compiler::PartsTogether(registers);
  Count(I64(0), together, parts, [&](Value* first) {
    Value* last = b().CreateSub(parts, I64(1));
    std::vector<Value*> there(size_t(together), nullptr), theirs;  // whether there is such a part; its vectors
    for (int64_t p = 0; p < together; ++p) {
      Value* part = first;
      if (p > 0) {
        part = b().CreateAdd(first, I64(p));
        there[size_t(p)] = b().CreateICmpULE(part, last);
        part = b().CreateSelect(there[size_t(p)], part, last);
      }
      Value* start = place(number(part));
      for (int64_t r = 0; r < registers; r += width) theirs.push_back(b().CreateAlignedLoad(type, at(start, r), align));
    }
    for (int64_t r = 0; r < registers; ++r) {
      Value* total = FromMemory(registers_.Load(sum.sum, r), dtype);
      for (int64_t p = 0; p < together; ++p) {
        Value* vector = theirs[size_t((p * registers + r) / width)];
        Value* value = FromMemory(b().CreateExtractElement(vector, uint64_t(r % width)), dtype);
        Value* more = Combine(b(), ir::ReduceKind::kSum, dtype, total, value);
        total = there[size_t(p)] == nullptr ? more : b().CreateSelect(there[size_t(p)], more, total);
      }
      registers_.Store(sum.sum, r, ToMemory(total, dtype));
    }
  });
  b().CreateBr(end);
  b().SetInsertPoint(end);
}

// for (i = first; i < end; i += step) body(i)
template <typename Body>
void StreamSums::Count(Value* first, int64_t step, Value* end, Body&& body) {
  llvm::BasicBlock *before = b().GetInsertBlock(), *head = NewBlock("part.next"), *inside = NewBlock("part.one"), *after = NewBlock("part.all");
  b().CreateBr(head);
  b().SetInsertPoint(head);
  llvm::PHINode* i = b().CreatePHI(b().getInt64Ty(), 2);
  i->addIncoming(first, before);
  b().CreateCondBr(b().CreateICmpULT(i, end), inside, after);
  b().SetInsertPoint(inside);
  body(i);
  i->addIncoming(b().CreateAdd(i, I64(step)), b().GetInsertBlock());
  b().CreateBr(head);
  b().SetInsertPoint(after);
}

}  // namespace

void LowerStreamSum(KernelContext& context, Evaluator& evaluator, Memory& memory, Barriers& barriers, const ir::StreamSum& sum) {
  StreamSums(context, evaluator, memory, barriers).Lower(sum);
}

}  // namespace kiln::llvm_ir
