// SPDX-License-Identifier: Apache-2.0
#include "compiler/target/instructions.h"

#include <algorithm>
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
Row MmaSync(std::string_view name, int m, int k, DType a, DType b, DType c, Feature required, Feature excluded,
            double cycles, std::string_view intrinsic) {
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
           .intrinsic = intrinsic,
           .cycles = cycles}};
}

// AMD matrix instruction calculator, CDNA: the lane's low part is the row of A (of B: the column), its high part the
// block of neighbouring k; D has four neighbouring rows in registers, then the lane's high part, then registers.
Row Mfma(std::string_view name, int size, int k, DType a, DType b, DType c, Feature required, Feature excluded,
         double cycles, std::string_view intrinsic) {
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
           .intrinsic = intrinsic,
           .cycles = cycles}};
}

// RDNA3: 16 neighbouring k in a lane, lanes 16–31 repeat lanes 0–15; D's rows alternate between the halves. RDNA4: each
// half of the wave holds half of k, and D's halves are eight rows each. The order of k is free where A and B agree:
// eight neighbours in a lane make the widest loads.
Row Wmma(std::string_view name, DType a, DType b, DType c, Feature required, double cycles,
         std::string_view intrinsic) {
  const bool replicated = (uint32_t(required) & uint32_t(Feature::kWmmaReplicated)) != 0;
  const Layout operand =
      replicated ? Layout({{T(16, 1)}, {R(16, 1)}}, {T(2, 16)}) : Layout({{T(16, 1)}, {R(8, 1), T(2, 16)}});
  const Layout result =
      replicated ? Layout({{T(2, 16), R(8, 1)}, {T(16, 1)}}) : Layout({{R(8, 1), T(2, 16)}, {T(16, 1)}});
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

const std::vector<Row>& Rows() {
  using enum ir::DType;
  // The .def files name features and types without their enumerations; kBF16 is the type, kBf16 the feature.
  constexpr Feature kNone = Feature::kNone, kMmaSync = Feature::kMmaSync, kMmaSyncWide = Feature::kMmaSyncWide,
                    kFp8Mma = Feature::kFp8Mma, kFp8MmaSync = Feature::kFp8MmaSync, kMfma = Feature::kMfma,
                    kMfmaWide = Feature::kMfmaWide, kMfmaDouble = Feature::kMfmaDouble, kXf32 = Feature::kXf32,
                    kFp8Fnuz = Feature::kFp8Fnuz, kWmma = Feature::kWmma, kWmmaReplicated = Feature::kWmmaReplicated;
  static const std::vector<Row> rows = {
#define KILN_MMA_SYNC(...) MmaSync(__VA_ARGS__),
#include "compiler/target/nvptx.def"
#define KILN_MFMA(...) Mfma(__VA_ARGS__),
#define KILN_WMMA(...) Wmma(__VA_ARGS__),
#include "compiler/target/amdgpu.def"
  };
  return rows;
}

std::vector<MmaInstruction> Select(const Target& target) {
  std::vector<MmaInstruction> selected;
  for (const Row& row : Rows()) {
    const bool excluded = row.excluded != Feature::kNone && target.Has(row.excluded);
    if (row.family == target.family && target.Has(row.instruction.required) && !excluded) {
      selected.push_back(row.instruction);
    }
  }
  return selected;
}

}  // namespace

std::span<const MmaInstruction> MmaInstructions(const Target& target) {
  static const std::vector<std::vector<MmaInstruction>> by_target = [] {
    std::vector<std::vector<MmaInstruction>> lists;
    for (const Target& t : All()) lists.push_back(Select(t));
    return lists;
  }();
  const auto found = std::ranges::find(All(), target.arch, &Target::arch);
  if (found == All().end()) return {};
  return by_target[size_t(found - All().begin())];
}

const MmaInstruction* FindMma(const Target& target, std::string_view name) {
  for (const MmaInstruction& row : MmaInstructions(target)) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kiln::target
