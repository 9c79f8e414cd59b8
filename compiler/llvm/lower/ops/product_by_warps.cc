// SPDX-License-Identifier: Apache-2.0
//
// Products of groups of four warps that each warp computes with mma.sync: the 16 of the instruction's 64 rows that it holds in registers.
// Fragments lie as for wgmma (PTX ISA: warp w of the group has rows 16w … 16w + 15, laid out as for mma.sync). wgmma would read the other
// operand itself; here ldmatrix loads it, two steps along k at once.
#include <algorithm>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using compiler::WarpGrid;
using target::MmaInstruction;

namespace {

// The operand in shared memory. A lane gives ldmatrix the address of row l % 8, at the (l / 8)th group of eight elements along k.
struct SharedRows {
  const ir::Region* region;
  int row_dim, k_dim;
  Value* lane;   // bytes
  Value* after;  // of the swizzle
};

class ProductsByWarps : Part {
 public:
  ProductsByWarps(KernelContext& context, Memory& memory)
      : Part(context), memory_(memory), registers_(memory.registers()), shared_(memory.shared()) {}

  void Lower(const ir::Gemm& gemm, const MmaInstruction& mma);

 private:
  SharedRows MakeSharedRows(const ir::Region& region, Value* row, Value* k);
  Values WordsOfRows(const SharedRows& rows, int64_t row, int64_t k, bool has_next);

  Memory& memory_;
  Registers& registers_;
  SharedMemory& shared_;
};

SharedRows ProductsByWarps::MakeSharedRows(const ir::Region& region, Value* row, Value* k) {
  const int last = int(region.extents.size()) - 1;
  SharedRows rows{&region, last - 1, last, nullptr, nullptr};
  Value* lane = b().CreateURem(thread(), I32(target().warp_size));
  const Memory::RegionStart start = memory_.StartOf(region);
  Value* of_rows = shared_.Term(region.buffer, rows.row_dim, AddTo(row, b().CreateURem(lane, I32(8))));
  Value* of_k = shared_.Term(region.buffer, rows.k_dim, AddTo(k, b().CreateMul(b().CreateUDiv(lane, I32(8)), I32(8))));
  rows.lane = AddTo(AddTo(of_rows, of_k), start.before);
  rows.after = start.after;
  return rows;
}

// The words of eight rows from `row` on, for the step that begins at `k` and, if there is one, the next.
Values ProductsByWarps::WordsOfRows(const SharedRows& rows, int64_t row, int64_t k, bool has_next) {
  const ir::BufferId buffer = rows.region->buffer;
  const SplitOffset offset{rows.lane,
                           compiler::SharedTerm(module()[buffer], rows.row_dim, row) + compiler::SharedTerm(module()[buffer], rows.k_dim, k)};
  return device().LoadMatrix(shared_.Pointer(buffer, offset, rows.after), has_next ? 4 : 2, /*transpose=*/false);
}

void ProductsByWarps::Lower(const ir::Gemm& gemm, const MmaInstruction& mma) {
  const ir::BufferId held = (mma.swapped ? gemm.b : gemm.a).buffer;
  if (module()[held].space != ir::Space::kFragment) return Internal("warps multiply an operand that is not in registers");
  const GemmShape shape = compiler::ShapeOf(gemm);
  const WarpGrid grid = compiler::GridOf(gemm, threads().range.Count(), target());
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_n = shape.n / mma.n / grid.warps_n, steps = shape.k / mma.k / grid.warps_k;
  const MmaInstruction hardware = target::Unswapped(mma);
  const MmaInstruction& each = *mma.each_warp;
  const int64_t wide = each.n, registers = each.c_layout.Registers();
  Value* group = threads().warp_group != nullptr ? threads().warp_group : device().Uniform(b().CreateUDiv(thread(), I32(grid.warp_size)));
  Value* group_k = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m * grid.warps_n)), I32(grid.warps_k));
  Value* group_n = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m)), I32(grid.warps_n));
  Value* k = grid.warps_k == 1 ? nullptr : b().CreateMul(group_k, I32(steps * mma.k));
  Value* column = mma.swapped || grid.warps_n == 1 ? nullptr : b().CreateMul(group_n, I32(shape.n / grid.warps_n));
  const SharedRows tile = MakeSharedRows(mma.swapped ? gemm.a : gemm.b, column, k);
  const int64_t held_atoms = mma.swapped ? atoms_n : atoms_m, tile_atoms = mma.swapped ? atoms_m : atoms_n;
  const int64_t blocks = tile_atoms * hardware.n / wide;
  Values c;
  for (int64_t r = 0; r < mma.c_layout.Registers() * atoms_m * atoms_n; ++r) {
    c.push_back(gemm.clear_accum ? llvm::Constant::getNullValue(MemoryType(llvm(), mma.c)) : registers_.Load(gemm.c.buffer, r));
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
      const Values rows = registers_.Words(held, hardware.a_layout.Registers() * (step + steps * atom), hardware.a_layout.Registers());
      for (int64_t block = 0; block < blocks; ++block) {
        const auto first = c.begin() + ptrdiff_t(start(atom, block));
        const Values in(first, first + registers), columns(words[size_t(block)].begin() + half, words[size_t(block)].begin() + half + 2);
        std::ranges::copy(device().Mma(each, rows, columns, in), first);
      }
    }
  }
  for (int64_t r = 0; r < int64_t(c.size()); ++r) registers_.Store(gemm.c.buffer, r, c[size_t(r)]);
}

}  // namespace

void LowerProductByWarps(KernelContext& context, Memory& memory, const ir::Gemm& gemm) {
  ProductsByWarps(context, memory).Lower(gemm, RowOf(gemm, context.target()));
}

}  // namespace kiln::llvm_ir
