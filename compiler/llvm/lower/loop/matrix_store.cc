// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/matrix_store.h"

#include <array>
#include <map>

#include "compiler/accesses/matrices.h"

namespace kiln::llvm_ir {
namespace {

class MatrixStore : Part {
 public:
  MatrixStore(KernelContext& context, Memory& memory, const compiler::ThreadLoop& loop, Addresses& addresses, Vectors& vectors,
              Neighbours& neighbours)
      : Part(context),
        registers_(memory.registers()),
        shared_(memory.shared()),
        loop_(loop),
        addresses_(addresses),
        vectors_(vectors),
        neighbours_(neighbours) {}

  void Lower(const ir::Store& store);

 private:
  Registers& registers_;
  SharedMemory& shared_;
  const compiler::ThreadLoop& loop_;
  Addresses& addresses_;
  Vectors& vectors_;
  Neighbours& neighbours_;
};

void MatrixStore::Lower(const ir::Store& store) {
  const bool transposed = store.plan->form == ir::StoreForm::kTransposed;
  const ElementAddress& address = addresses_.Of(store.buffer, store.indices);
  const size_t columns = loop_.extents.size() - 1, rows = columns - 1;
  const int64_t across = *loop_.SharedStep(store.buffer, *address.split, columns), down = *loop_.SharedStep(store.buffer, *address.split, rows);
  // The address less this lane's own row and columns, plus the row it gives.
  Value *lane = b().CreateURem(thread(), I32(32)), *row = b().CreateURem(lane, I32(8)), *matrix = b().CreateUDiv(lane, I32(8));
  const int64_t of_group = transposed ? across : down, of_pair = 2 * (transposed ? down : across);
  Value* own = b().CreateAdd(b().CreateMul(b().CreateUDiv(lane, I32(4)), I32(of_group)), b().CreateMul(b().CreateURem(lane, I32(4)), I32(of_pair)));
  Value* start = b().CreateSub(address.base.variable, own);
  start = b().CreateAdd(start, b().CreateMul(row, I32(down)));
  std::map<std::array<int64_t, 2>, Value*> offsets;
  for (int64_t first = 0; first < loop_.Registers(); first += 8) {
    const std::array<int64_t, 2> steps = *compiler::MatrixSteps(loop_, store.buffer, *address.split, first);
    Value*& variable = offsets[steps];
    if (variable == nullptr) {
      variable = b().CreateAdd(start, b().CreateMul(b().CreateURem(matrix, I32(2)), I32(steps[0])));
      variable = b().CreateAdd(variable, b().CreateMul(b().CreateUDiv(matrix, I32(2)), I32(steps[1])));
    }
    Values words;
    for (int64_t m = 0; m < 4; ++m) {
      const Values pair = neighbours_.Eval(store, first + 2 * m, 2);
      vectors_.CheckStore(address, first + 2 * m, 2, nullptr);
      words.push_back(registers_.Word(pair, module()[store.buffer].dtype));
    }
    const SplitOffset offset{variable, addresses_.OffsetAt(address, first).constant};
    device().StoreMatrix(shared_.Pointer(store.buffer, offset, address.after), words, transposed);
  }
}

}  // namespace

void StoreByMatrix(KernelContext& context, Memory& memory, const compiler::ThreadLoop& loop, Addresses& addresses, Vectors& vectors,
                   Neighbours& neighbours, const ir::Store& store) {
  MatrixStore(context, memory, loop, addresses, vectors, neighbours).Lower(store);
}

}  // namespace kiln::llvm_ir
