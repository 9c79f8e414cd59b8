// SPDX-License-Identifier: Apache-2.0
//
// Instructions of warps that the program has chosen: operands and sums lie in arrays of each thread.
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/target/instructions.h"

namespace kiln::llvm_ir {
namespace {

class ChosenProduct : Part {
 public:
  ChosenProduct(KernelContext& context, Memory& memory) : Part(context), memory_(memory) {}

  void Lower(const ir::Mma& op) {
    const target::MmaInstruction& row = *RowOf(op, module(), target());
    const Values a = Words(op.a), w = Words(op.b), c = Elements(op.c), sums = device().Mma(row, a, w, c);
    for (size_t i = 0; i < sums.size(); ++i) b().CreateAlignedStore(sums[i], At(op.c, i), memory_.AlignOf(op.c.buffer, 1));
    memory_.NoteWritten(op.c);
  }

 private:
  llvm::Type* TypeOf(const ir::Region& region) const { return MemoryType(llvm(), module()[region.buffer].dtype); }
  Value* At(const ir::Region& region, size_t element) {
    return b().CreateConstGEP1_64(TypeOf(region), memory_.ElementPointer(region.buffer, region.offsets), element);
  }

  Values Elements(const ir::Region& region) {
    memory_.CheckRegion(region);
    Values elements;
    for (size_t i = 0; i < size_t(region.extents[0]); ++i)
      elements.push_back(b().CreateAlignedLoad(TypeOf(region), At(region, i), memory_.AlignOf(region.buffer, 1)));
    return elements;
  }

  Values Words(const ir::Region& region) {
    const ir::DType dtype = module()[region.buffer].dtype;
    const Values elements = Elements(region);
    const size_t each = 32 / size_t(ir::Bits(dtype));
    Values words;
    for (size_t i = 0; i < elements.size(); i += each) words.push_back(memory_.registers().Word(std::span(elements).subspan(i, each), dtype));
    return words;
  }

  Memory& memory_;
};

}  // namespace

void LowerMma(KernelContext& context, Memory& memory, const ir::Mma& mma) { ChosenProduct(context, memory).Lower(mma); }

}  // namespace kiln::llvm_ir
