// SPDX-License-Identifier: Apache-2.0
//
// Stores of accumulator fragments to shared memory by stmatrix (compiler/accesses/matrices.h).
#include <array>

#include "compiler/accesses/matrices.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

void KernelLowering::StoreByMatrix(const ir::Store& store) {
  const bool transposed = store.plan->form == ir::StoreForm::kTransposed;
  const ElementAddress& address = AddressOf(store.buffer, store.indices);
  const size_t columns = element_->extents.size() - 1, rows = columns - 1;
  const int64_t across = *element_->SharedStep(store.buffer, *address.split, columns),
                down = *element_->SharedStep(store.buffer, *address.split, rows);
  // The address less this lane's own row and columns, plus the row it gives.
  Value *lane = b().CreateURem(thread_, I32(32)), *row = b().CreateURem(lane, I32(8)), *matrix = b().CreateUDiv(lane, I32(8));
  const int64_t of_group = transposed ? across : down, of_pair = 2 * (transposed ? down : across);
  Value* own = b().CreateAdd(b().CreateMul(b().CreateUDiv(lane, I32(4)), I32(of_group)), b().CreateMul(b().CreateURem(lane, I32(4)), I32(of_pair)));
  Value* start = b().CreateSub(address.base.variable, own);
  start = b().CreateAdd(start, b().CreateMul(row, I32(down)));
  std::map<std::array<int64_t, 2>, Value*> offsets;
  for (int64_t first = 0; first < element_->Registers(); first += 8) {
    const std::array<int64_t, 2> steps = *compiler::MatrixSteps(*element_, store.buffer, *address.split, first);
    Value*& variable = offsets[steps];
    if (variable == nullptr) {
      variable = b().CreateAdd(start, b().CreateMul(b().CreateURem(matrix, I32(2)), I32(steps[0])));
      variable = b().CreateAdd(variable, b().CreateMul(b().CreateUDiv(matrix, I32(2)), I32(steps[1])));
    }
    Values words;
    for (int64_t m = 0; m < 4; ++m) {
      const Values pair = EvalChunk(store, first + 2 * m, 2);
      CheckNeighbours(address, first + 2 * m, 2, nullptr, nullptr, /*write=*/true);
      words.push_back(PackWord(pair, module_[store.buffer].dtype));
    }
    const SplitOffset offset{variable, OffsetAt(address, first).constant};
    device_->StoreMatrix(SharedPointer(store.buffer, offset, address.after), words, transposed);
  }
}

}  // namespace kiln::llvm_ir
