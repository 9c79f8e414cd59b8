// SPDX-License-Identifier: Apache-2.0
//
// Accumulator fragments to shared memory by stmatrix: a pair of neighbouring registers over the lanes of a warp is an 8×8 matrix of
// 16-bit elements, four of which one instruction stores as rows of 16 bytes. Lane 4g + q holds row g, columns 2q and 2q + 1, or
// transposed (as of a swapped product) column g, rows 2q and 2q + 1.
#include <array>
#include <optional>

#include "compiler/llvm/kernel_lowering.h"
#include "compiler/rules/thread_range.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

using ir::Place;

namespace {

bool StartsWith(const std::vector<ir::Digit>& dim, std::initializer_list<ir::Digit> digits) {
  return dim.size() >= digits.size() && std::equal(digits.begin(), digits.end(), dim.begin());
}

}  // namespace

// Bytes from the first of four matrices to the second and the third; the fourth lies at their sum.
std::optional<std::array<int64_t, 2>> KernelLowering::MatrixSteps(const AccessPlan& plan, int64_t first) {
  std::array<int64_t, 4> at{};
  for (int64_t m = 0; m < 4; ++m) at[size_t(m)] = OffsetAt(plan, first + 2 * m).constant;
  const std::array<int64_t, 2> steps{at[1] - at[0], at[2] - at[0]};
  if (at[3] - at[0] != steps[0] + steps[1] || steps[0] % 16 != 0 || steps[1] % 16 != 0) return std::nullopt;
  return steps;
}

// Whether every row of every matrix starts at a multiple of 16 bytes.
bool KernelLowering::RowsAreAligned(const ir::Store& store) const {
  const int last = int(store.indices.size()) - 1;
  for (int d = 0; d < last; ++d)
    if (SharedStride(store.buffer, d) % 8 != 0) return false;
  const compiler::Linear linear = compiler::LinearOf(pool(), store.indices.back());
  if (linear.constant % 8 != 0) return false;
  for (const auto& [term, coefficient] : linear.terms) {
    if (LoopVariable(ir::ExprId(term)) >= 0) continue;
    if (facts_.DivisorOf(ir::ExprId(term)) * coefficient % 8 != 0) return false;
  }
  return true;
}

bool KernelLowering::StoreByMatrix(const ir::For& loop) {
  if (!context_.target->Has(target::Feature::kStMatrix) || loop.body.size() != 1 || loop.vars.size() < 2) return false;
  if (!compiler::IsOfWholeWarps(threads_, context_.target->warp_size)) return false;
  const auto& store = std::get<ir::Store>(loop.body[0].op);
  const ir::Buffer& buffer = module_[store.buffer];
  if (store.async || buffer.space != ir::Space::kShared || ir::Bits(buffer.dtype) != 16) return false;
  const size_t columns = loop.vars.size() - 1, rows = columns - 1;
  const ir::Layout& layout = element_->layout;
  const auto holds = [&](size_t lanes, size_t pairs) {
    return StartsWith(layout.dim(int(lanes)), {{8, Place::kThread, 4}}) &&
           StartsWith(layout.dim(int(pairs)), {{2, Place::kRegister, 1}, {4, Place::kThread, 1}});
  };
  const bool transposed = holds(columns, rows);
  if (!transposed && !holds(rows, columns)) return false;
  const int64_t registers = int64_t(element_->parts.size());
  for (bool padded : element_->padded)
    if (padded) return false;
  if (element_->first_copy != nullptr || registers % 8 != 0) return false;
  const AccessPlan& plan = PlanOf(store.buffer, store.indices);
  const std::optional<int64_t> across = StepOf(plan, columns), down = StepOf(plan, rows);
  if (!plan.linear || across != 2 || !down || *down % 16 != 0 || !RowsAreAligned(store)) return false;
  for (int64_t first = 0; first < registers; first += 8)
    if (!MatrixSteps(plan, first)) return false;

  // The plan's address less this lane's own row and columns, plus the row it gives.
  Value *lane = b().CreateURem(thread_, I32(32)), *row = b().CreateURem(lane, I32(8)), *matrix = b().CreateUDiv(lane, I32(8));
  const int64_t of_group = transposed ? *across : *down, of_pair = 2 * (transposed ? *down : *across);
  Value* own = b().CreateAdd(b().CreateMul(b().CreateUDiv(lane, I32(4)), I32(of_group)), b().CreateMul(b().CreateURem(lane, I32(4)), I32(of_pair)));
  Value* start = b().CreateSub(plan.base.variable, own);
  start = b().CreateAdd(start, b().CreateMul(row, I32(*down)));
  std::map<std::array<int64_t, 2>, Value*> offsets;
  for (int64_t first = 0; first < registers; first += 8) {
    const std::array<int64_t, 2> steps = *MatrixSteps(plan, first);
    Value*& variable = offsets[steps];
    if (variable == nullptr) {
      variable = b().CreateAdd(start, b().CreateMul(b().CreateURem(matrix, I32(2)), I32(steps[0])));
      variable = b().CreateAdd(variable, b().CreateMul(b().CreateUDiv(matrix, I32(2)), I32(steps[1])));
    }
    Values words;
    for (int64_t m = 0; m < 4; ++m) {
      Values pair = EvalChunk(store.value, first + 2 * m, 2);
      CheckNeighbours(plan, first + 2 * m, 2, nullptr, /*write=*/true);
      words.push_back(PackWord(pair, buffer.dtype));
    }
    const SplitOffset offset{variable, OffsetAt(plan, first).constant};
    device_->StoreMatrix(SharedPointer(store.buffer, offset, plan.after), words, transposed);
  }
  return true;
}

}  // namespace kiln::llvm_ir
