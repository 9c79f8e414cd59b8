// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by groups of four warps, which read shared memory themselves through descriptors.
//
// A descriptor (PTX ISA, "Matrix Descriptor Format") holds addresses in units of 16 bytes: bits 0–13 the start, 16–29 the leading and
// 32–45 the stride dimension byte offset, 62–63 the swizzle (1, 2, 3: 128, 64, 32 bytes). For tiles laid out by WgmmaSharedLayout:
//   k contiguous:    stride offset: 8 rows; the leading one is ignored. Further k: along the row, then the next column of the tile
//   rows contiguous: stride offset: 8 steps of k; leading offset: the next column. Further k: 16 rows of the buffer
#include "compiler/llvm/kernel_lowering.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using compiler::WarpGrid;
using ir::Space;
using target::MmaInstruction;

// The descriptor of the tile's first element.
Value* KernelLowering::SharedDescriptor(const ir::Region& region, bool k_is_last) {
  const ir::Buffer& buffer = module_[region.buffer];
  const int last = int(region.extents.size()) - 1;
  const RegionStart start = StartOf(region);
  Value* address = b().CreatePtrToInt(shared_, b().getInt32Ty());
  address = b().CreateAdd(AddTo(AddTo(address, start.after), start.before), I32(*buffer.shared_offset));
  const int64_t pitch = SharedStride(region.buffer, last - 1) * ir::Bytes(buffer.dtype);
  const int64_t stride = 8 * pitch;
  const int64_t leading = !k_is_last && IsBlocked(region.buffer, last)
                              ? buffer.layout->dim(last)[1].stride * ir::Bytes(buffer.dtype) : 16;
  const uint64_t swizzle = buffer.layout->swizzle().bits == 3 ? 1 : buffer.layout->swizzle().bits == 2 ? 2 : 3;
  const uint64_t fixed = swizzle << 62 | uint64_t(stride / 16) << 32 | uint64_t(leading / 16) << 16;
  Value* low = b().CreateLShr(b().CreateAnd(address, I32(0x3ffff)), uint64_t{4});
  return b().CreateOr(b().CreateZExt(low, b().getInt64Ty()), b().getInt64(fixed));
}

// The descriptor moved to a row and a k of the tile, and by bytes that follow from the warp group.
Value* KernelLowering::DescriptorAt(Value* start, const ir::Region& region, int64_t row, int64_t k, bool k_is_last, Value* group_offset) {
  const int last = int(region.extents.size()) - 1;
  const int64_t bytes = SharedTerm(region.buffer, k_is_last ? last - 1 : last, row) + SharedTerm(region.buffer, k_is_last ? last : last - 1, k);
  Value* result = group_offset == nullptr ? start : b().CreateAdd(start, b().CreateZExt(group_offset, b().getInt64Ty()));
  return b().CreateAdd(result, I64(bytes / 16));
}

void KernelLowering::LowerWgmma(const ir::Gemm& gemm, const MmaInstruction& mma) {
  const GemmShape shape = compiler::ShapeOf(gemm);
  const WarpGrid grid = compiler::GridOf(*gemm.plan, mma, kernel_.threads, *context_.target);
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_n = shape.n / mma.n / grid.warps_n, steps = shape.k / mma.k;
  const int64_t registers = mma.c_layout.Registers(), columns = shape.n / grid.warps_n;
  const bool a_in_registers = module_[gemm.a.buffer].space == Space::kFragment;
  const bool a_k_last = !gemm.transpose_a, b_k_last = gemm.transpose_b;

  // Where the group's rows and columns begin, in units of 16 bytes.
  Value* group = device_->Uniform(b().CreateUDiv(thread_, I32(grid.warp_size)));
  Value* group_m = b().CreateURem(group, I32(grid.warps_m));
  Value* group_n = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m)), I32(grid.warps_n));
  const auto group_offset = [&](const ir::Region& region, bool k_is_last, int64_t rows, Value* index) -> Value* {
    const int rank_last = int(region.extents.size()) - 1;
    Value* bytes = SharedTerm(region.buffer, k_is_last ? rank_last - 1 : rank_last, b().CreateMul(index, I32(rows)));
    return b().CreateLShr(bytes, uint64_t{4});
  };
  Value* a_start = a_in_registers ? nullptr : SharedDescriptor(gemm.a, a_k_last);
  Value* a_group = a_in_registers || grid.warps_m == 1 ? nullptr : group_offset(gemm.a, a_k_last, mma.m, group_m);
  Value* b_start = SharedDescriptor(gemm.b, b_k_last);
  Value* b_group = grid.warps_n == 1 ? nullptr : group_offset(gemm.b, b_k_last, columns, group_n);

  Operand fragment{.buffer = gemm.a.buffer, .mma = &mma, .is_a = true, .layout = {}, .atom = mma.a_layout, .steps = steps,
                   .row_dim = 0, .k_dim = 1};
  Values results;  // in the order of the fragment's registers
  for (int64_t m = 0; m < atoms_m; ++m) {
    Values a;
    for (int64_t step = 0; step < steps; ++step) {
      if (a_in_registers) {
        const Values words = FragmentWords(fragment, mma.a_layout.Registers() * (step + steps * m));
        a.insert(a.end(), words.begin(), words.end());
      } else {
        a.push_back(DescriptorAt(a_start, gemm.a, m * mma.m * grid.warps_m, step * mma.k, a_k_last, a_group));
      }
    }
    for (int64_t n = 0; n < atoms_n; ++n) {
      Values w, c;
      for (int64_t step = 0; step < steps; ++step) {
        w.push_back(DescriptorAt(b_start, gemm.b, n * mma.n, step * mma.k, b_k_last, b_group));
      }
      const int64_t first = registers * (n + atoms_n * m);
      for (int64_t r = 0; r < registers; ++r) {
        c.push_back(gemm.clear_accum ? llvm::Constant::getNullValue(MemoryType(llvm(), mma.c)) : LoadRegister(gemm.c.buffer, first + r));
      }
      const Values started = device_->MmaGroup(mma, a, w, c, gemm.clear_accum, !a_k_last, !b_k_last);
      results.insert(results.end(), started.begin(), started.end());
    }
  }
  results = device_->MmaWait(results);
  for (size_t r = 0; r < results.size(); ++r) StoreRegister(gemm.c.buffer, int64_t(r), results[r]);
}

}  // namespace kiln::llvm_ir
