// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by groups of four warps, which read shared memory themselves through descriptors.
//
// A descriptor (PTX ISA, "Matrix Descriptor Format") holds addresses in units of 16 bytes: bits 0–13 the start, 16–29 the leading and
// 32–45 the stride dimension byte offset, 62–63 the swizzle (1, 2, 3: 128, 64, 32 bytes). For tiles laid out by WgmmaSharedLayout:
//   k contiguous:    stride offset: 8 rows; the leading one is ignored. Further k: along the row, then the next column of the tile
//   rows contiguous: stride offset: 8 steps of k; leading offset: the next column. Further k: rows of the buffer, as many as the step has
#include <optional>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/ops/metadata.h"
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using compiler::WarpGrid;
using ir::Space;
using target::MmaInstruction;

namespace {

struct Descriptor {
  Value* low = nullptr;  // addresses and offsets
  uint32_t high = 0;     // swizzle and stride
};

// An operand of a product by groups: the descriptor its tile starts with, or a fragment.
struct GroupOperand {
  const ir::Region* region;
  bool k_is_last;
  int64_t k;                              // of it, for one instruction
  std::optional<ir::BufferId> held = {};  // a fragment
  int64_t held_registers = 0;             // of it, for one instruction
  int64_t steps = 0;                      // instructions along k
  Descriptor start = {};
  Value* group = nullptr;  // units of 16 bytes
};

class GroupProducts : Part {
 public:
  GroupProducts(KernelContext& context, Memory& memory)
      : Part(context), memory_(memory), places_(memory.places()), registers_(memory.registers()), shared_(memory.shared()) {}

  void Lower(const ir::Gemm& gemm, const MmaInstruction& mma);

 private:
  Descriptor SharedDescriptor(const ir::Region& region, bool k_is_last);
  Value* DescriptorAt(const Descriptor& start, const ir::Region& region, int64_t row, int64_t k, bool k_is_last, Value* group_offset) const;
  // `row`, `k`: where the group's part begins. `depth`: of the operand, for one instruction.
  GroupOperand MakeGroupOperand(const ir::Region& region, bool k_is_last, const MmaInstruction& hardware, int64_t depth, int64_t steps, Value* row,
                                Value* k);
  Values GroupWords(const GroupOperand& operand, int64_t atom, int64_t row, int64_t step);

  Memory& memory_;
  Places& places_;
  Registers& registers_;
  SharedMemory& shared_;
};

// The descriptor of the tile's first element. Its upper half is the same for the whole tile: arithmetic is done on the lower one.
Descriptor GroupProducts::SharedDescriptor(const ir::Region& region, bool k_is_last) {
  const ir::Buffer& buffer = module()[region.buffer];
  const int last = int(region.extents.size()) - 1;
  const Memory::RegionStart start = memory_.StartOf(region);
  Value* address = b().CreatePtrToInt(places_.Shared(), b().getInt32Ty());
  address = b().CreateAdd(AddTo(AddTo(address, start.after), start.before), I32(*buffer.shared_offset));
  const int64_t pitch = compiler::SharedStride(buffer, last - 1) * ir::Bytes(buffer.dtype);
  const int64_t stride = 8 * pitch;
  const int64_t leading = !k_is_last && compiler::IsBlocked(buffer, last) ? buffer.layout->dim(last)[1].stride * ir::Bytes(buffer.dtype) : 16;
  const uint64_t swizzle = buffer.layout->swizzle().bits == 3 ? 1 : buffer.layout->swizzle().bits == 2 ? 2 : 3;
  Value* start_address = b().CreateLShr(b().CreateAnd(address, I32(0x3ffff)), uint64_t{4});
  return {.low = b().CreateOr(start_address, I32(leading / 16 << 16)), .high = uint32_t(swizzle << 30 | uint64_t(stride / 16))};
}

// The descriptor of a row and a k of the tile, with the warp group's offset added.
Value* GroupProducts::DescriptorAt(const Descriptor& start, const ir::Region& region, int64_t row, int64_t k, bool k_is_last,
                                   Value* group_offset) const {
  const int last = int(region.extents.size()) - 1;
  const ir::Buffer& buffer = module()[region.buffer];
  const int64_t bytes = compiler::SharedTerm(buffer, k_is_last ? last - 1 : last, row) + compiler::SharedTerm(buffer, k_is_last ? last : last - 1, k);
  Value* low = group_offset == nullptr ? start.low : b().CreateAdd(start.low, group_offset);
  low = b().CreateAdd(low, I32(bytes / 16));
  return device().JoinDescriptor(low, start.high);
}

GroupOperand GroupProducts::MakeGroupOperand(const ir::Region& region, bool k_is_last, const MmaInstruction& hardware, int64_t depth, int64_t steps,
                                             Value* row, Value* k) {
  GroupOperand operand{.region = &region, .k_is_last = k_is_last, .k = depth};
  if (module()[region.buffer].space == Space::kFragment) {
    operand.held = region.buffer, operand.held_registers = hardware.a_layout.Registers(), operand.steps = steps;
    return operand;
  }
  operand.start = SharedDescriptor(region, k_is_last);
  const int last = int(region.extents.size()) - 1;
  if (row != nullptr) operand.group = shared_.Term(region.buffer, k_is_last ? last - 1 : last, row);
  if (k != nullptr) operand.group = AddTo(operand.group, shared_.Term(region.buffer, k_is_last ? last : last - 1, k));
  if (operand.group != nullptr) operand.group = b().CreateLShr(operand.group, uint64_t{4});
  return operand;
}

// The registers of instruction `atom` at `step` along k, or the descriptor of `row` at that step.
Values GroupProducts::GroupWords(const GroupOperand& operand, int64_t atom, int64_t row, int64_t step) {
  if (operand.held) return registers_.Words(*operand.held, operand.held_registers * (step + operand.steps * atom), operand.held_registers);
  return {DescriptorAt(operand.start, *operand.region, row, step * operand.k, operand.k_is_last, operand.group)};
}

void GroupProducts::Lower(const ir::Gemm& gemm, const MmaInstruction& mma) {
  const GemmShape shape = compiler::ShapeOf(gemm);
  const WarpGrid grid = compiler::GridOf(gemm, threads().range.Count(), target());
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_n = shape.n / mma.n / grid.warps_n, steps = shape.k / mma.k / grid.warps_k;
  const int64_t registers = mma.c_layout.Registers(), columns = shape.n / grid.warps_n;
  const MmaInstruction hardware = target::Unswapped(mma);
  Value* group = threads().warp_group != nullptr ? threads().warp_group : device().Uniform(b().CreateUDiv(thread(), I32(grid.warp_size)));
  Value* group_k = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m * grid.warps_n)), I32(grid.warps_k));
  Value* group_m = b().CreateURem(group, I32(grid.warps_m));
  Value* group_n = b().CreateURem(b().CreateUDiv(group, I32(grid.warps_m)), I32(grid.warps_n));
  const auto depth = [&](int64_t each) { return grid.warps_k == 1 ? nullptr : b().CreateMul(group_k, I32(steps * each)); };
  Value* row = grid.warps_m == 1 ? nullptr : b().CreateMul(group_m, I32(mma.m));
  Value* column = grid.warps_n == 1 ? nullptr : b().CreateMul(group_n, I32(columns));
  const GroupOperand a = MakeGroupOperand(gemm.a, !gemm.transpose_a, hardware, mma.KeptK(), steps, row, depth(mma.KeptK()));
  const GroupOperand w = MakeGroupOperand(gemm.b, gemm.transpose_b, hardware, mma.k, steps, column, depth(mma.k));
  std::optional<Metadata> metadata;
  if (mma.IsSparse()) metadata.emplace(context(), memory_, gemm, mma, grid);
  const GroupOperand &first = mma.swapped ? w : a, &second = mma.swapped ? a : w;
  const bool fresh = gemm.clear_accum || gemm.plan->promoted;  // starts from zero
  Values results;                                              // in the order of the fragment's registers
  for (int64_t m = 0; m < atoms_m; ++m) {
    for (int64_t n = 0; n < atoms_n; ++n) {
      Values rows, lines, c;
      std::vector<SparseMetadata> places;
      for (int64_t step = 0; step < steps; ++step) {
        const Values at_m = GroupWords(a, m, m * mma.m * grid.warps_m, step), at_n = GroupWords(w, n, n * mma.n, step);
        const Values &row = mma.swapped ? at_n : at_m, &line = mma.swapped ? at_m : at_n;
        rows.insert(rows.end(), row.begin(), row.end());
        lines.insert(lines.end(), line.begin(), line.end());
        if (metadata) places.push_back(metadata->At(m, step));
      }
      const int64_t start = registers * (n + atoms_n * m);
      for (int64_t r = 0; r < registers; ++r) {
        c.push_back(fresh ? llvm::Constant::getNullValue(MemoryType(llvm(), mma.c)) : registers_.Load(gemm.c.buffer, start + r));
      }
      Values started = device().MmaGroup(hardware, rows, lines, c, fresh, !first.k_is_last, !second.k_is_last, places);
      if (gemm.plan->promoted) {
        started = device().MmaWait(started, 0);
        for (int64_t r = 0; r < registers; ++r) started[size_t(r)] = b().CreateFAdd(registers_.Load(gemm.c.buffer, start + r), started[size_t(r)]);
        const bool last = m + 1 == atoms_m && n + 1 == atoms_n;
        if (!last) started = device().Settled(started);
      } else {
        registers_.Use(gemm.c.buffer, start, registers);
      }
      results.insert(results.end(), started.begin(), started.end());
      for (const auto& [operand, atom] : {std::pair{&a, m}, {&w, n}}) {
        if (!operand->held) continue;
        const int64_t each = operand->held_registers * operand->steps;
        registers_.Use(*operand->held, each * atom, each);
      }
    }
  }
  if (!gemm.plan->in_flight && !gemm.plan->promoted) results = device().MmaWait(results, 0);
  for (size_t r = 0; r < results.size(); ++r) registers_.Put(gemm.c.buffer, int64_t(r), results[r]);
}

}  // namespace

void LowerGroupProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm) {
  GroupProducts(context, memory).Lower(gemm, RowOf(gemm, context.target()));
}

void WaitForProduct(KernelContext& context, Memory& memory, ir::BufferId sum, int32_t pending) {
  Registers& registers = memory.registers();
  Values values;
  for (int64_t r = 0; r < context.module()[sum].layout->Registers(); ++r) values.push_back(registers.Load(sum, r));
  values = context.device().MmaWait(values, pending);
  for (size_t r = 0; r < values.size(); ++r) registers.Put(sum, int64_t(r), values[r]);
}

}  // namespace kiln::llvm_ir
