// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/tensor_copies.h"

#include <algorithm>

#include "compiler/rules/roles.h"

namespace kiln::llvm_ir {
namespace {

// A box's coordinates have 32 bits, to which a place within the tile is added.
constexpr int64_t kLargestTile = 1 << 16;                            // elements along a dimension: more than shared memory holds
constexpr int64_t kFarthest = (INT32_MAX - kLargestTile) / 16 * 16;  // as an innermost coordinate a multiple of 16 bytes

}  // namespace

void TensorCopies::Prefetch() {
  for (Value* map : arguments_) device().TensorPrefetch(map);
}

// Where a box starts, innermost dimension first.
Values TensorCopies::BoxAt(const ir::Region& global, const compiler::TensorTile& tile, int64_t row, int64_t column) {
  Values at;
  // Far outside stays outside.
  const auto add = [&](Value* wide, int64_t step) {
    wide = b().CreateBinaryIntrinsic(llvm::Intrinsic::smax, wide, I64(INT32_MIN));
    wide = b().CreateBinaryIntrinsic(llvm::Intrinsic::smin, wide, I64(kFarthest));
    Value* offset = b().CreateTrunc(wide, b().getInt32Ty());
    at.push_back(step == 0 ? offset : b().CreateAdd(offset, I32(step)));
  };
  const bool panels = tile.map.panels > 1;
  for (size_t d = global.offsets.size(); d-- > 0;) {
    if (panels && d == tile.column_dim) {
      at.push_back(I32(0));
    } else {
      add(evaluator_.EvalIndex(global.offsets[d]), d == tile.row_dim ? row * tile.row_step : d == tile.column_dim ? column * tile.column_step : 0);
    }
  }
  if (panels) add(b().CreateSDiv(evaluator_.EvalIndex(global.offsets[tile.column_dim]), I64(tile.column_step), "", /*isExact=*/true), 0);
  return at;
}

void TensorCopies::Lower(const ir::Copy& copy) {
  const compiler::TensorTile tile = compiler::TileOf(module(), copy);
  const ir::Region &global = compiler::GlobalSide(module(), copy), &shared = compiler::SharedSide(module(), copy);
  const bool load = copy.plan->ring.has_value();
  if (load && threads().slice == nullptr) return;  // the filling role's
  const size_t map = size_t(std::ranges::find(maps_, tile.map) - maps_.begin());
  const Memory::RegionStart start = memory_.StartOf(shared);
  Value* tile_offset = AddTo(start.after, start.before);
  Value* barrier = nullptr;
  if (load) barrier = rings_.FilledBarrier(*copy.plan->ring);
  Value* everybody = copy.plan->multicast ? b().getInt16((1 << kPair) - 1) : nullptr;
  const int64_t groups_m = copy.plan->groups_m, groups_n = copy.plan->groups_n;
  const auto owner = [&](int64_t row, int64_t column) { return groups_m == 0 ? 0 : row % groups_m + groups_m * (column * groups_n / tile.columns); };
  const auto move = [&](int64_t group) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      for (int64_t column = 0; column < tile.columns; ++column) {
        if (owner(row, column) != group) continue;
        Value* place = tile_offset == nullptr ? places_.Shared() : b().CreateGEP(b().getInt8Ty(), places_.Shared(), tile_offset);
        const int64_t constant = *module()[shared.buffer].shared_offset + row * tile.row_bytes + column * tile.column_bytes;
        place = b().CreateConstGEP1_64(b().getInt8Ty(), place, uint64_t(constant));
        const Values at = BoxAt(global, tile, row, column);
        if (load) {
          device().TensorLoad(place, arguments_[map], at, barrier, everybody);
        } else if (copy.plan->adds) {
          device().TensorReduce(AtomicOp::kAdd, arguments_[map], at, place);
        } else {
          device().TensorStore(arguments_[map], at, place);
        }
      }
    }
    if (!load) device().TensorStoreCommit();
  };
  if (load && everybody != nullptr) return When(rings_.IsMyTurn(*copy.plan->ring), [&] { move(0); });
  if (load) return move(0);
  for (int64_t group = 0; group < std::max<int64_t>(1, groups_m * groups_n); ++group) {
    When(b().CreateICmpEQ(thread(), I32(group * compiler::kGroupThreads)), [&] { move(group); });
  }
}

}  // namespace kiln::llvm_ir
