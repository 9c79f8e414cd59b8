// SPDX-License-Identifier: Apache-2.0
#include "compiler/target/instructions.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kiln::target {
namespace {

using ir::Digit;
using ir::DType;
using ir::Layout;

Digit R(int64_t size, int64_t stride) { return {size, ir::Place::kRegister, stride}; }
Digit T(int64_t size, int64_t stride) { return {size, ir::Place::kThread, stride}; }

struct Row {
  Family family;
  Feature excluded;
  MmaInstruction instruction;
};

// PTX ISA, "Matrix Fragments for mma.m16n8k…": lane = 4·g + q. A's word 2v + h holds row g + 8h and the k of its e =
// 32/bits elements from e·(q + 4v); B is the same without h; C has columns 2q, 2q + 1 of rows g and g + 8.
Row MmaSync(std::string_view name, int m, int k, DType a, DType b, DType c, Feature required, Feature excluded, double cycles,
            std::string_view intrinsic) {
  const int e = 32 / ir::Bits(a);
  const int halves = m / 8;
  return {Family::kNvptx,
          excluded,
          {.name = name,
           .required = required,
           .m = m,
           .n = 8,
           .k = k,
           .a = a,
           .b = b,
           .c = c,
           .a_layout = Layout({{T(8, 4), R(halves, e)}, {R(e, 1), T(4, 1), R(k / (4 * e), e * halves)}}),
           .b_layout = Layout({{T(8, 4)}, {R(e, 1), T(4, 1), R(k / (4 * e), e)}}),
           .c_layout = Layout({{T(8, 4), R(halves, 2)}, {R(2, 1), T(4, 1)}}),
           .units = 4,  // tensor cores
           .intrinsic = intrinsic,
           .cycles = cycles}};
}

// PTX ISA, "Matrix fragments for multiply-accumulate operation with sparse matrix A": of lanes 4·g + q, those with q of 0 and 1 (selector 1: 2 and 3)
// hold the metadata of rows g and g + 8 for a half of k each. Those of 8-bit elements take all lanes: q's low bit is for rows g + 8, the high one
// for the second half of k. `warps`: of wgmma ("Sparse matrix storage" of wgmma.mma_async.sp), which have 16 rows each.
void MakeSparse(MmaInstruction& row, int64_t warps) {
  const bool bytes = ir::Bits(row.a) == 8;
  row.k *= 2;
  row.selectors = bytes ? 1 : 2;
  std::vector<Digit> rows = {T(8, 4), bytes ? T(2, 1) : R(2, 1)};
  if (warps > 1) rows.push_back(T(warps, 32));
  row.metadata_layout = Layout({std::move(rows), {bytes ? T(2, 2) : T(2, 1)}});
}

// mma.sp, once for targets that take indices in any order and once for those that want them in order. What a sparse A keeps lies as the dense A of
// half as many columns does. Cycles: A100's, as of the dense instruction of half the depth. Behind the words of A, B and C, the intrinsics take the
// word of metadata and the selector.
std::vector<Row> SparseMmaRows() {
  struct Type {
    std::string_view name, llvm;
    int k;
    DType a, b, c;
    Feature required = Feature::kMmaSyncWide;
  };
  using enum DType;
  static constexpr Feature kFp8 = Feature::kMmaSyncWide | Feature::kFp8MmaSync;
  static constexpr Type kTypes[] = {{"mma.sp.m16n8k32.f32.f16", "f32.f32", 32, kF16, kF16, kF32},
                                    {"mma.sp.m16n8k32.f16.f16", "f16.f16", 32, kF16, kF16, kF16},
                                    {"mma.sp.m16n8k32.f32.bf16", "bf16", 32, kBF16, kBF16, kF32},
                                    {"mma.sp.m16n8k16.f32.tf32", "tf32", 16, kTF32, kTF32, kF32},
                                    {"mma.sp.m16n8k64.s32.s8", "s8", 64, kI8, kI8, kI32},
                                    {"mma.sp.m16n8k64.s32.s8.u8", "s8.u8", 64, kI8, kU8, kI32},
                                    {"mma.sp.m16n8k64.s32.u8.s8", "u8.s8", 64, kU8, kI8, kI32},
                                    {"mma.sp.m16n8k64.s32.u8", "u8", 64, kU8, kU8, kI32},
                                    {"mma.sp.m16n8k64.f32.e4m3", "f32.e4m3.e4m3.f32", 64, kF8E4M3, kF8E4M3, kF32, kFp8},
                                    {"mma.sp.m16n8k64.f32.e4m3.e5m2", "f32.e4m3.e5m2.f32", 64, kF8E4M3, kF8E5M2, kF32, kFp8},
                                    {"mma.sp.m16n8k64.f32.e5m2.e4m3", "f32.e5m2.e4m3.f32", 64, kF8E5M2, kF8E4M3, kF32, kFp8},
                                    {"mma.sp.m16n8k64.f32.e5m2", "f32.e5m2.e5m2.f32", 64, kF8E5M2, kF8E5M2, kF32, kFp8}};
  static std::deque<std::string> names;  // rows hold views
  std::vector<Row> rows;
  for (const Type& type : kTypes) {
    for (const bool ordered : {false, true}) {
      const std::string form = ordered ? "llvm.nvvm.mma.sp.ordered.metadata.m16n8k" : "llvm.nvvm.mma.sp.m16n8k";
      names.push_back(form + std::to_string(type.k) + ".row.col." + std::string(type.llvm));
      const auto dense = [&](int k) {
        return MmaSync(type.name, 16, k, type.a, type.b, type.c, ordered ? type.required | Feature::kOrderedSparse : type.required,
                       ordered ? Feature::kNone : Feature::kOrderedSparse, 8, names.back());
      };
      Row& row = rows.emplace_back(dense(type.k / 2));
      row.instruction.b_layout = dense(type.k).instruction.b_layout;
      MakeSparse(row.instruction, 1);
    }
  }
  return rows;
}

// AMD matrix instruction calculator, CDNA: the lane's low part is the row of A (of B: the column), its high part the
// block of neighbouring k; D has four neighbouring rows in registers, then the lane's high part, then registers.
Row Mfma(std::string_view name, int size, int k, DType a, DType b, DType c, Feature required, Feature excluded, double cycles,
         std::string_view intrinsic) {
  const int blocks = 64 / size;
  const Layout operand({{T(size, 1)}, {R(k / blocks, 1), T(blocks, size)}});
  return {Family::kAmdgpu,
          excluded,
          {.name = name,
           .required = required,
           .m = size,
           .n = size,
           .k = k,
           .a = a,
           .b = b,
           .c = c,
           .a_layout = operand,
           .b_layout = operand,
           .c_layout = Layout({{R(4, 1), T(blocks, size), R(size / (4 * blocks), 4)}, {T(size, 1)}}),
           .units = 4,  // SIMDs of a compute unit
           .intrinsic = intrinsic,
           .cycles = cycles}};
}

// CDNA3 ISA, "Sparse Matrix Multiply Accumulate": what a lane keeps of A is half of as many neighbours along k as it has of B, and its metadata are
// the index register's lowest bits.
Row Smfmac(std::string_view name, int size, int k, DType a, DType b, DType c, Feature required, Feature excluded, double cycles,
           std::string_view intrinsic) {
  Row row = Mfma(name, size, k, a, b, c, required, excluded, cycles, intrinsic);
  row.instruction.a_layout = Mfma(name, size, k / 2, a, b, c, required, excluded, cycles, intrinsic).instruction.a_layout;
  row.instruction.metadata_layout = Layout({{T(size, 1)}, {T(64 / size, size)}});
  return row;
}

// RDNA3: 16 neighbouring k in a lane, lanes 16–31 repeat lanes 0–15; D's rows alternate between the halves. RDNA4: each
// half of the wave holds half of k, and D's halves are eight rows each. The order of k is free where A and B agree:
// eight neighbours in a lane make the widest loads.
Row Wmma(std::string_view name, DType a, DType b, DType c, Feature required, double cycles, std::string_view intrinsic) {
  const bool replicated = (uint32_t(required) & uint32_t(Feature::kWmmaReplicated)) != 0;
  const Layout operand = replicated ? Layout({{T(16, 1)}, {R(16, 1)}}, {T(2, 16)}) : Layout({{T(16, 1)}, {R(8, 1), T(2, 16)}});
  const Layout result = replicated ? Layout({{T(2, 16), R(8, 1)}, {T(16, 1)}}) : Layout({{R(8, 1), T(2, 16)}, {T(16, 1)}});
  return {Family::kAmdgpu,
          Feature::kNone,
          {.name = name,
           .required = required,
           .m = 16,
           .n = 16,
           .k = 16,
           .a = a,
           .b = b,
           .c = c,
           .a_layout = operand,
           .b_layout = operand,
           .c_layout = result,
           .intrinsic = intrinsic,
           .cycles = cycles}};
}

// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk…": warp w of the group has rows 16w … 16w + 15, laid out as mma.sync's;
// of 8-bit operands a word holds four neighbours of k. b has no fragment: it stays in shared memory. Products of 8-bit floats are added in
// 13 bits, truncated: over a long k that is less than f16's precision.
Row Wgmma(std::string_view name, int n, int k, DType a, DType b, DType c, std::string_view type) {
  const int e = 32 / ir::Bits(a);
  return {Family::kNvptx,
          Feature::kNone,
          {.name = name,
           .required = Feature::kWgmma,
           .m = 64,
           .n = n,
           .k = k,
           .a = a,
           .b = b,
           .c = c,
           .a_layout = Layout({{T(8, 4), R(2, e), T(4, 32)}, {R(e, 1), T(4, 1), R(2, 2 * e)}}),
           .b_layout = Layout(),
           .c_layout = Layout({{T(8, 4), R(2, 2), T(4, 32)}, {R(2, 1), T(4, 1), R(n / 8, 4)}}),
           .team = Team::kGroup,
           .reads_shared = true,
           .in_flight = true,
           .short_sums = c == DType::kF32 && ir::IsFp8(a),
           .units = 1,  // the multiprocessor's four tensor cores together
           .intrinsic = type,
           .cycles = n / 2.0}};
}

// Columns of the result are the instruction's rows: for a b that lies in registers, or for few rows.
Row Swapped(const Row& row, std::string_view name) {
  static constexpr int kOrder[] = {1, 0};
  Row swapped = row;
  MmaInstruction& mma = swapped.instruction;
  std::swap(mma.m, mma.n);
  std::swap(mma.a, mma.b);
  std::swap(mma.a_layout, mma.b_layout);
  mma.c_layout = mma.c_layout.Permuted(kOrder);
  mma.swapped = !mma.swapped;
  mma.name = name;
  return swapped;
}

// Every N of every type, from the widest: 8 … 256 in steps of 8; of integers 8, 16, 24, then steps of 16.
std::vector<Row> WgmmaRows() {
  struct Type {
    std::string_view short_name, ptx;
    int k;
    DType a, b, c;
  };
  using enum DType;
  static constexpr Type kTypes[] = {{"f32.f16", "f32.f16.f16", 16, kF16, kF16, kF32},
                                    {"f32.bf16", "f32.bf16.bf16", 16, kBF16, kBF16, kF32},
                                    {"f32.tf32", "f32.tf32.tf32", 8, kTF32, kTF32, kF32},
                                    {"f32.e4m3", "f32.e4m3.e4m3", 32, kF8E4M3, kF8E4M3, kF32},
                                    {"f32.e5m2", "f32.e5m2.e5m2", 32, kF8E5M2, kF8E5M2, kF32},
                                    {"f32.e4m3.e5m2", "f32.e4m3.e5m2", 32, kF8E4M3, kF8E5M2, kF32},
                                    {"f32.e5m2.e4m3", "f32.e5m2.e4m3", 32, kF8E5M2, kF8E4M3, kF32},
                                    {"s32.s8", "s32.s8.s8", 32, kI8, kI8, kI32},
                                    {"s32.u8", "s32.u8.u8", 32, kU8, kU8, kI32}};
  static std::deque<std::string> names;  // rows hold views
  const auto name = [](std::string_view form, int n, int k, std::string_view types) -> std::string_view {
    return names.emplace_back(std::string(form) + std::to_string(n) + "k" + std::to_string(k) + "." + std::string(types));
  };
  std::vector<Row> rows;
  for (const Type& type : kTypes) {
    for (int n = 256; n >= 8; n -= 8) {
      if (type.c == kI32 && n > 32 && n % 16 != 0) continue;
      rows.push_back(Wgmma(name("wgmma.m64n", n, type.k, type.short_name), n, type.k, type.a, type.b, type.c, type.ptx));
      rows.push_back(Swapped(rows.back(), names.emplace_back(names.back() + ".swapped")));
      rows.push_back(Wgmma(name("wgmma.sp.m64n", n, 2 * type.k, type.short_name), n, type.k, type.a, type.b, type.c, type.ptx));
      MakeSparse(rows.back().instruction, 4);
    }
  }
  return rows;
}

const std::vector<Row>& Rows() {
  using enum ir::DType;
  // The .def files name features and types without their enumerations; kBF16 is the type, kBf16 the feature.
  constexpr Feature kNone = Feature::kNone, kMmaSync = Feature::kMmaSync, kMmaSyncWide = Feature::kMmaSyncWide, kFp8Mma = Feature::kFp8Mma,
                    kFp8MmaSync = Feature::kFp8MmaSync, kMfma = Feature::kMfma, kMfmaWide = Feature::kMfmaWide, kMfmaDouble = Feature::kMfmaDouble,
                    kXf32 = Feature::kXf32, kFp8Fnuz = Feature::kFp8Fnuz, kWmma = Feature::kWmma, kWmmaReplicated = Feature::kWmmaReplicated;
  static const std::vector<Row> rows = [] {
    std::vector<Row> all = {
#define KILN_MMA_SYNC(...) MmaSync(__VA_ARGS__),
#include "compiler/target/nvptx.def"
#define KILN_MFMA(...) Mfma(__VA_ARGS__),
#define KILN_SMFMAC(...) Smfmac(__VA_ARGS__),
#define KILN_WMMA(...) Wmma(__VA_ARGS__),
#include "compiler/target/amdgpu.def"
    };
    std::ranges::move(SparseMmaRows(), std::back_inserter(all));
    std::ranges::move(WgmmaRows(), std::back_inserter(all));
    return all;
  }();
  return rows;
}

// The row with which a warp computes its 16 rows of a group's row. It gives ldmatrix and fragments pairs of 16-bit floats.
const MmaInstruction* EachWarp(const MmaInstruction& group, std::span<const MmaInstruction> rows) {
  if (!group.IsByGroup() || group.IsSparse() || group.a != group.b || ir::Bits(group.a) != 16) return nullptr;
  const auto found = std::ranges::find_if(rows, [&](const MmaInstruction& row) {
    return row.team == Team::kWarp && row.m == 16 && row.k == group.k && row.a == group.a && row.b == group.b && row.c == group.c;
  });
  return found == rows.end() ? nullptr : &*found;
}

std::vector<MmaInstruction> Select(const Target& target) {
  std::vector<MmaInstruction> selected;
  for (const Row& row : Rows()) {
    const bool excluded = row.excluded != Feature::kNone && target.Has(row.excluded);
    if (row.family == target.family && target.Has(row.instruction.required) && !excluded) {
      selected.push_back(row.instruction);
    }
  }
  for (MmaInstruction& row : selected) row.each_warp = EachWarp(row, selected);
  return selected;
}

struct Table {
  std::vector<MmaInstruction> rows;
  std::unordered_map<std::string_view, const MmaInstruction*> by_name;  // looked up, never walked
};

const Table& TableOf(const Target& target) {
  static const std::vector<Table> tables = [] {
    std::vector<Table> all;
    for (const Target& t : All()) {
      Table& table = all.emplace_back(Select(t));
      for (const MmaInstruction& row : table.rows) table.by_name.emplace(row.name, &row);
    }
    return all;
  }();
  static const Table none{};
  const auto found = std::ranges::find(All(), target.arch, &Target::arch);
  return found == All().end() ? none : tables[size_t(found - All().begin())];
}

MmaInstruction Scalar(std::string_view name, Feature required, int k, DType operand, DType sum) {
  MmaInstruction row{};
  row.name = name, row.required = required;
  row.m = row.n = 1, row.k = k;
  row.a = row.b = operand, row.c = sum;
  row.team = Team::kThread;
  return row;
}

}  // namespace

std::span<const MmaInstruction> MmaInstructions(const Target& target) { return TableOf(target).rows; }

const MmaInstruction& Fma() {
  static const MmaInstruction row = Scalar("fma", Feature::kNone, 1, DType::kF32, DType::kF32);
  return row;
}

const MmaInstruction& Dp4a() {
  static const MmaInstruction row = Scalar("dp4a", Feature::kDp4a, 4, DType::kI8, DType::kI32);
  return row;
}

MmaInstruction Unswapped(const MmaInstruction& row) {
  return row.swapped ? Swapped({Family::kNvptx, Feature::kNone, row}, row.name).instruction : row;
}

const MmaInstruction* FindMma(const Target& target, std::string_view name) {
  const auto& rows = TableOf(target).by_name;
  const auto found = rows.find(name);
  return found == rows.end() ? nullptr : found->second;
}

const MmaInstruction& RowOf(const ir::Gemm& gemm, const Target& target) {
  const std::string_view name = gemm.plan->instruction;
  for (const MmaInstruction* row : {&Fma(), &Dp4a()})
    if (row->name == name) return *row;
  return *FindMma(target, name);
}

const MmaInstruction* RowOf(const ir::Mma& mma, const ir::Module& module, const Target& target) {
  const auto is_meant = [&](const MmaInstruction& row) {
    const auto holds = [&](const ir::Region& region, ir::DType dtype, const ir::Layout& layout) {
      return module[region.buffer].dtype == dtype && ir::Bits(dtype) <= 32 && layout.rank() > 0 && region.extents[0] == layout.Registers();
    };
    return row.team == Team::kWarp && !row.reads_shared && !row.swapped && uint32_t(row.m) == mma.m && uint32_t(row.n) == mma.n &&
           uint32_t(row.k) == mma.k && holds(mma.a, row.a, row.a_layout) && holds(mma.b, row.b, row.b_layout) && holds(mma.c, row.c, row.c_layout);
  };
  const std::span<const MmaInstruction> rows = MmaInstructions(target);
  const auto found = std::ranges::find_if(rows, is_meant);
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace kiln::target
