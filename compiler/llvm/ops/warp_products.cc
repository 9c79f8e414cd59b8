// SPDX-License-Identifier: Apache-2.0
//
// Products of groups of four warps that each warp computes with mma.sync: the 16 of the instruction's 64 rows that it holds in registers.
// Fragments lie as for wgmma (PTX ISA: warp w of the group has rows 16w … 16w + 15, laid out as for mma.sync). wgmma would read the other
// operand itself; here ldmatrix loads it, two steps along k at once.
#include <algorithm>

#include "compiler/llvm/kernel_lowering.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using compiler::WarpGrid;
using target::MmaInstruction;

// The operand in shared memory. A lane gives ldmatrix the address of row l % 8, at the (l / 8)th group of eight elements along k.
struct KernelLowering::SharedRows {
  const ir::Region* region;
  int row_dim, k_dim;
  Value* lane;   // bytes
  Value* after;  // of the swizzle
};

KernelLowering::SharedRows KernelLowering::MakeSharedRows(const ir::Region& region, Value* row, Value* k) {
  const int last = int(region.extents.size()) - 1;
  SharedRows rows{&region, last - 1, last, nullptr, nullptr};
  Value* lane = b().CreateURem(thread_, I32(context_.target->warp_size));
  const RegionStart start = StartOf(region);
  Value* of_rows = SharedTerm(region.buffer, rows.row_dim, AddTo(row, b().CreateURem(lane, I32(8))));
  Value* of_k = SharedTerm(region.buffer, rows.k_dim, AddTo(k, b().CreateMul(b().CreateUDiv(lane, I32(8)), I32(8))));
  rows.lane = AddTo(AddTo(of_rows, of_k), start.before);
  rows.after = start.after;
  return rows;
}

// The words of eight rows from `row` on, for the step that begins at `k` and, if there is one, the next.
Values KernelLowering::WordsOfRows(const SharedRows& rows, int64_t row, int64_t k, bool has_next) {
  const ir::BufferId buffer = rows.region->buffer;
  const SplitOffset offset{rows.lane,
                           compiler::SharedTerm(module_[buffer], rows.row_dim, row) + compiler::SharedTerm(module_[buffer], rows.k_dim, k)};
  return device_->LoadMatrix(SharedPointer(buffer, offset, rows.after), has_next ? 4 : 2, /*transpose=*/false);
}

// Pairs of neighbours along k.
Values KernelLowering::HeldWords(ir::BufferId fragment, int64_t first, int64_t count) {
  Values words;
  for (int64_t r = first; r < first + count; r += 2) {
    Value* pair[] = {LoadRegister(fragment, r), LoadRegister(fragment, r + 1)};
    words.push_back(PackWord(pair, module_[fragment].dtype));
  }
  return words;
}

void KernelLowering::LowerByWarps(const ir::Gemm& gemm, const MmaInstruction& mma) {
  const ir::BufferId held = (mma.swapped ? gemm.b : gemm.a).buffer;
  if (module_[held].space != ir::Space::kFragment) return diagnostics_.Internal("warps multiply an operand that is not in registers", loc_);
  const GemmShape shape = compiler::ShapeOf(gemm);
  const WarpGrid grid = compiler::GridOf(gemm, threads_.Count(), *context_.target);
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_n = shape.n / mma.n / grid.warps_n, steps = shape.k / mma.k / grid.warps_k;
  const MmaInstruction hardware = target::Unswapped(mma);
  const MmaInstruction& each = *mma.each_warp;
  const int64_t wide = each.n, registers = each.c_layout.Registers();
  Value* group = warp_group_ != nullptr ? warp_group_ : device_->Uniform(b().CreateUDiv(thread_, I32(grid.warp_size)));
  Value* group_k = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m * grid.warps_n)), I32(grid.warps_k));
  Value* group_n = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m)), I32(grid.warps_n));
  Value* k = grid.warps_k == 1 ? nullptr : b().CreateMul(group_k, I32(steps * mma.k));
  Value* column = mma.swapped || grid.warps_n == 1 ? nullptr : b().CreateMul(group_n, I32(shape.n / grid.warps_n));
  const SharedRows tile = MakeSharedRows(mma.swapped ? gemm.a : gemm.b, column, k);
  const int64_t held_atoms = mma.swapped ? atoms_n : atoms_m, tile_atoms = mma.swapped ? atoms_m : atoms_n;
  const int64_t blocks = tile_atoms * hardware.n / wide;
  Values c;
  for (int64_t r = 0; r < mma.c_layout.Registers() * atoms_m * atoms_n; ++r) {
    c.push_back(gemm.clear_accum ? llvm::Constant::getNullValue(MemoryType(llvm(), mma.c)) : LoadRegister(gemm.c.buffer, r));
  }
  // Index of the first result register of a block of columns.
  const auto start = [&](int64_t atom, int64_t block) {
    const int64_t at = block * wide / hardware.n, place = mma.swapped ? atom + atoms_n * at : at + atoms_n * atom;
    return mma.c_layout.Registers() * place + registers * (block % (hardware.n / wide));
  };
  std::vector<Values> words(static_cast<size_t>(blocks));
  for (int64_t step = 0; step < steps; ++step) {
    const ptrdiff_t half = step % 2 * 2;
    for (int64_t block = 0; half == 0 && block < blocks; ++block)
      words[size_t(block)] = WordsOfRows(tile, block * wide, step * each.k, step + 1 < steps);
    for (int64_t atom = 0; atom < held_atoms; ++atom) {
      const Values rows = HeldWords(held, hardware.a_layout.Registers() * (step + steps * atom), hardware.a_layout.Registers());
      for (int64_t block = 0; block < blocks; ++block) {
        const auto first = c.begin() + ptrdiff_t(start(atom, block));
        const Values in(first, first + registers), columns(words[size_t(block)].begin() + half, words[size_t(block)].begin() + half + 2);
        std::ranges::copy(device_->Mma(each, rows, columns, in), first);
      }
    }
  }
  for (int64_t r = 0; r < int64_t(c.size()); ++r) StoreRegister(gemm.c.buffer, r, c[size_t(r)]);
}

}  // namespace kiln::llvm_ir
