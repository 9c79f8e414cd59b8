// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using ir::DType;

namespace {

class ScalarProducts : Part {
 public:
  ScalarProducts(KernelContext& context, Memory& memory) : Part(context), memory_(memory), registers_(memory.registers()), shared_(memory.shared()) {}

  void Lower(const ir::Gemm& gemm, const target::MmaInstruction& row);

 private:
  Memory& memory_;
  Registers& registers_;
  SharedMemory& shared_;
};

void ScalarProducts::Lower(const ir::Gemm& gemm, const target::MmaInstruction& row) {
  const GemmShape shape = compiler::ShapeOf(gemm);
  const ir::Layout layout = compiler::ScalarAccumulatorLayout(shape, threads().range.Count());
  const Values thread = ThreadParts(layout);
  const DType type_c = module()[gemm.c.buffer].dtype;
  const DType wide = ir::IsFloat(type_c) ? (type_c == DType::kF64 ? DType::kF64 : DType::kF32) : type_c;
  const int64_t step = row.k;
  const bool dp4a = step == 4;

  if (gemm.clear_accum) {
    for (int64_t r = 0; r < layout.Registers(); ++r) registers_.Store(gemm.c.buffer, r, ToMemory(Constant(type_c, 0), type_c));
  }
  // One operand's elements at row `part` of this thread and the current k.
  struct Side {
    const ir::Region* region;
    int row_dim, k_dim;
    Value* row;
    Memory::RegionStart start;
  };
  const auto side = [&](const ir::Region& region, bool k_is_last, Value* row) {
    const int rank = int(region.extents.size());
    return Side{&region, k_is_last ? rank - 2 : rank - 1, k_is_last ? rank - 1 : rank - 2, row, memory_.StartOf(region)};
  };
  const Side a = side(gemm.a, !gemm.transpose_a, thread[0]), w = side(gemm.b, gemm.transpose_b, thread[1]);

  llvm::BasicBlock* before = b().GetInsertBlock();
  llvm::BasicBlock *body = NewBlock("product"), *more = NewBlock("product.next"), *end = NewBlock("product.end");
  b().CreateBr(body);
  b().SetInsertPoint(body);
  llvm::PHINode* k = b().CreatePHI(b().getInt32Ty(), 2);
  k->addIncoming(I32(0), before);
  b().SetInsertPoint(more);
  Value* next = b().CreateAdd(k, I32(step));
  // Added before the body: until k has its increment, LLVM's facts about it would say that it is 0.
  k->addIncoming(next, more);
  b().CreateCondBr(b().CreateICmpULT(next, I32(shape.k)), body, end);
  b().SetInsertPoint(body);
  const auto load = [&](const Side& s, int64_t part) {
    const ir::Buffer& buffer = module()[s.region->buffer];
    const int64_t bytes = ir::Bytes(buffer.dtype);
    SplitOffset offset;
    offset.variable =
        AddTo(Scaled(s.row, compiler::SharedStride(buffer, s.row_dim) * bytes), Scaled(k, compiler::SharedStride(buffer, s.k_dim) * bytes));
    offset.variable = AddTo(offset.variable, s.start.before);
    offset.constant = part * compiler::SharedStride(buffer, s.row_dim) * bytes;
    Value* pointer = shared_.Pointer(s.region->buffer, offset, s.start.after);
    if (dp4a) return static_cast<Value*>(b().CreateAlignedLoad(b().getInt32Ty(), pointer, llvm::Align(4)));
    Value* v = b().CreateAlignedLoad(MemoryType(llvm(), buffer.dtype), pointer, llvm::Align(uint64_t(bytes)));
    return device().Convert(FromMemory(v, buffer.dtype), buffer.dtype, wide);
  };
  std::map<int64_t, Value*> rows, columns;
  for (int64_t r = 0; r < layout.Registers(); ++r) {
    const ir::Indices part = layout.RegisterPart(r);
    Value *&x = rows[part[0]], *&y = columns[part[1]];
    if (x == nullptr) x = load(a, part[0]);
    if (y == nullptr) y = load(w, part[1]);
    Value* sum = device().Convert(FromMemory(registers_.Load(gemm.c.buffer, r), type_c), type_c, wide);
    if (dp4a) {
      sum = device().Dp4a(x, y, sum, ir::IsSigned(module()[gemm.a.buffer].dtype), ir::IsSigned(module()[gemm.b.buffer].dtype));
    } else {
      sum = ir::IsFloat(wide) ? b().CreateIntrinsic(x->getType(), llvm::Intrinsic::fma, {x, y, sum}) : b().CreateAdd(sum, b().CreateMul(x, y));
    }
    registers_.Store(gemm.c.buffer, r, ToMemory(device().Convert(sum, wide, type_c), type_c));
  }
  b().CreateBr(more);
  b().SetInsertPoint(end);
}

}  // namespace

void LowerScalarProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm) {
  ScalarProducts(context, memory).Lower(gemm, RowOf(gemm, context.target()));
}

}  // namespace kiln::llvm_ir
