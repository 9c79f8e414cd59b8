// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using ir::DType;

namespace {

constexpr int64_t kWidest = 16;    // bytes that a thread loads at a time
constexpr int64_t kMostSums = 64;  // a choice: with more, the elements of several k would not fit into a thread's registers beside them

class ScalarProducts : Part {
 public:
  ScalarProducts(KernelContext& context, Memory& memory) : Part(context), memory_(memory), registers_(memory.registers()), shared_(memory.shared()) {}

  void Lower(const ir::Gemm& gemm, const target::MmaInstruction& row);

 private:
  // One operand, of which a thread takes rows.
  struct Side {
    const ir::Region* region;
    int row_dim, k_dim;
    Value* row;  // of the thread's first element
    Memory::RegionStart start;
  };
  Side SideOf(const ir::Region& region, bool k_is_last, Value* row);
  int64_t NeighboursAlong(const Side& side, int dim, int64_t extent) const;
  Value* PlaceOf(const Side& side, int64_t part, Value* k, int64_t ahead);

  Memory& memory_;
  Registers& registers_;
  SharedMemory& shared_;
};

ScalarProducts::Side ScalarProducts::SideOf(const ir::Region& region, bool k_is_last, Value* row) {
  const int rank = int(region.extents.size());
  return Side{&region, k_is_last ? rank - 2 : rank - 1, k_is_last ? rank - 1 : rank - 2, row, memory_.StartOf(region)};
}

// How many elements of 32 bits along a dimension one access takes: they are neighbours in memory, aligned to their size, and the swizzle leaves
// them together.
int64_t ScalarProducts::NeighboursAlong(const Side& side, int dim, int64_t extent) const {
  const ir::Buffer& buffer = module()[side.region->buffer];
  const ir::Swizzle& swizzle = buffer.layout->swizzle();
  const int64_t bytes = ir::Bytes(buffer.dtype), width = kWidest / bytes;
  if (bytes != 4 || extent % width != 0 || (swizzle.bits > 0 && int64_t{1} << swizzle.base < kWidest)) return 1;
  if (facts().DivisorOf(side.region->offsets[size_t(dim)]) % width != 0) return 1;
  for (int d = 0; d < buffer.layout->rank(); ++d) {
    for (const ir::Digit& digit : buffer.layout->dim(d)) {
      const bool along = d == dim && &digit == &buffer.layout->dim(d).front();
      if (along ? digit.stride != 1 || digit.size % width != 0 : digit.size > 1 && digit.stride % width != 0) return 1;
    }
  }
  return buffer.layout->dim(dim).empty() ? 1 : width;
}

Value* ScalarProducts::PlaceOf(const Side& side, int64_t part, Value* k, int64_t ahead) {
  const ir::Buffer& buffer = module()[side.region->buffer];
  const int64_t bytes = ir::Bytes(buffer.dtype);
  Value* at = ahead == 0 ? k : b().CreateAdd(k, I32(ahead));
  SplitOffset offset;
  offset.variable =
      AddTo(Scaled(side.row, compiler::SharedStride(buffer, side.row_dim) * bytes), Scaled(at, compiler::SharedStride(buffer, side.k_dim) * bytes));
  offset.variable = AddTo(offset.variable, side.start.before);
  offset.constant = part * compiler::SharedStride(buffer, side.row_dim) * bytes;
  return shared_.Pointer(side.region->buffer, offset, side.start.after);
}

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
  const Side a = SideOf(gemm.a, !gemm.transpose_a, thread[0]), w = SideOf(gemm.b, gemm.transpose_b, thread[1]);
  // Where k runs along memory, a thread takes several k at once. Its registers are to hold them beside the sums.
  const bool floats = ir::IsFloat(wide) && ir::Bits(wide) == 32 && layout.Registers() <= kMostSums;
  const int64_t taken = floats ? std::max(NeighboursAlong(a, a.k_dim, shape.k), NeighboursAlong(w, w.k_dim, shape.k)) : 1;
  const int64_t at_once = dp4a ? step : taken;

  llvm::BasicBlock* before = b().GetInsertBlock();
  llvm::BasicBlock *body = NewBlock("product"), *more = NewBlock("product.next"), *end = NewBlock("product.end");
  b().CreateBr(body);
  b().SetInsertPoint(body);
  llvm::PHINode* k = b().CreatePHI(b().getInt32Ty(), 2);
  k->addIncoming(I32(0), before);
  b().SetInsertPoint(more);
  Value* next = b().CreateAdd(k, I32(at_once));
  // Added before the body: until k has its increment, LLVM's facts about it would say that it is 0.
  k->addIncoming(next, more);
  b().CreateCondBr(b().CreateICmpULT(next, I32(shape.k)), body, end);
  b().SetInsertPoint(body);
  std::map<std::pair<int64_t, int64_t>, Value*> rows, columns;  // by the register's part and k
  const auto element = [&](std::map<std::pair<int64_t, int64_t>, Value*>& loaded, const Side& s, int64_t part, int64_t ahead) {
    Value*& value = loaded[{part, ahead}];
    if (value != nullptr) return value;
    const DType dtype = module()[s.region->buffer].dtype;
    const auto convert = [&](Value* v) { return device().Convert(FromMemory(v, dtype), dtype, wide); };
    if (dp4a) return value = b().CreateAlignedLoad(b().getInt32Ty(), PlaceOf(s, part, k, 0), llvm::Align(4));
    if (NeighboursAlong(s, s.k_dim, shape.k) != at_once || at_once == 1) {
      return value = convert(b().CreateAlignedLoad(MemoryType(llvm(), dtype), PlaceOf(s, part, k, ahead), llvm::Align(uint64_t(ir::Bytes(dtype)))));
    }
    auto* type = llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(at_once));
    Value* vector = b().CreateAlignedLoad(type, PlaceOf(s, part, k, 0), llvm::Align(uint64_t(at_once * ir::Bytes(dtype))));
    for (int64_t i = 0; i < at_once; ++i) loaded[{part, i}] = convert(b().CreateExtractElement(vector, uint64_t(i)));
    return loaded[{part, ahead}];
  };
  for (int64_t ahead = 0; ahead < (dp4a ? 1 : at_once); ++ahead) {
    for (int64_t r = 0; r < layout.Registers(); ++r) {
      const ir::Indices part = layout.RegisterPart(r);
      Value *x = element(rows, a, part[0], ahead), *y = element(columns, w, part[1], ahead);
      Value* sum = device().Convert(FromMemory(registers_.Load(gemm.c.buffer, r), type_c), type_c, wide);
      if (dp4a) {
        sum = device().Dp4a(x, y, sum, ir::IsSigned(module()[gemm.a.buffer].dtype), ir::IsSigned(module()[gemm.b.buffer].dtype));
      } else {
        sum = ir::IsFloat(wide) ? b().CreateIntrinsic(x->getType(), llvm::Intrinsic::fma, {x, y, sum}) : b().CreateAdd(sum, b().CreateMul(x, y));
      }
      registers_.Store(gemm.c.buffer, r, ToMemory(device().Convert(sum, wide, type_c), type_c));
    }
  }
  b().CreateBr(more);
  b().SetInsertPoint(end);
}

}  // namespace

void LowerScalarProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm) {
  ScalarProducts(context, memory).Lower(gemm, RowOf(gemm, context.target()));
}

}  // namespace kiln::llvm_ir
