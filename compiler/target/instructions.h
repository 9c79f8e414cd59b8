// SPDX-License-Identifier: Apache-2.0
//
// Instructions that multiply matrices, as rows (nvptx.def, amdgpu.def). Choosing one is a query with a cost (mapping/instructions); a plan then
// names the row. What the row says is all that passes, layouts and lowering know about it.
#pragma once

#include <span>
#include <string_view>

#include "compiler/target/target.h"
#include "ir/layout.h"
#include "ir/module.h"
#include "ir/op.h"
#include "ir/type.h"

namespace kiln::target {

// Who computes an instruction together: each thread alone, a warp, or a group of four warps.
enum class Team : uint8_t { kThread, kWarp, kGroup };

// The team computes c[m, n] += a[m, k] · b[n, k]ᵀ. Layouts map to (lane, register); a register is one element, and elements that
// share a 32-bit word of the instruction's operand have neighbouring numbers, low bits first.
struct MmaInstruction {
  std::string_view name;  // "mma.m16n8k16.f32.f16"; unique
  Feature required;
  int m, n, k;
  ir::DType a, b, c;
  ir::Layout a_layout;  // (m, k)
  ir::Layout b_layout;  // (n, k)
  ir::Layout c_layout;  // (m, n)
  // Of a row that takes a sparse A (ir::Sparsity): a_layout is of (m, k/2), and this one of the metadata, (m, parts of k). A lane has one word, of
  // which its first register is the lowest bits. Lanes that hold none hold those of another instruction, with another of `selectors` selectors.
  ir::Layout metadata_layout = {};
  int selectors = 1;
  Team team = Team::kWarp;     // lanes of the layouts are its lanes
  bool reads_shared = false;   // it reads the operand without a layout (and the other one, unless it is a fragment) from shared memory itself
  bool in_flight = false;      // it may keep running while its team goes on, until somebody waits for the sum
  bool short_sums = false;     // it adds in fewer bits than c has
  int units = 0;               // of a multiprocessor, each of which computes such an instruction in `cycles`; 0: not known
  std::string_view intrinsic;  // LLVM's name, without the suffix of overloaded types
  bool swapped = false;        // the row computes cᵀ = b · aᵀ: what the hardware calls A is b here; c_layout is as c lies
  double cycles;               // issue cycles of one instruction on one unit; a cost-model hint
  // Of a group's row: the row with which each of its warps may compute the product's rows that it holds; nullptr where there is none.
  const MmaInstruction* each_warp = nullptr;

  bool IsByGroup() const { return team == Team::kGroup; }
  bool IsScalar() const { return team == Team::kThread; }
  bool IsSparse() const { return metadata_layout.rank() > 0; }
  int KeptK() const { return IsSparse() ? k / 2 : k; }  // columns of A
  // Of one register of metadata_layout.
  int64_t MetadataBits() const { return k / ir::Sparsity(a).group * ir::Sparsity::kBits / metadata_layout.Extent(1); }
  int64_t Warps() const { return IsByGroup() ? 4 : 1; }  // of the team
  // Whether registers may hold the operand.
  bool ReadsA() const { return a_layout.rank() > 0; }
  bool ReadsB() const { return b_layout.rank() > 0; }
};

// The matrix instructions this target has, in the table's order. Where an instruction exists but is emulated by the hardware's assembler
// (fp8 mma.sync on sm_90) its cycles say so.
std::span<const MmaInstruction> MmaInstructions(const Target& target);
// For products that fit none of these: each thread multiplies by itself. No cost model counts these rows, which have no cycles.
const MmaInstruction& Fma();   // on every target and of every type
const MmaInstruction& Dp4a();  // four products of 8-bit integers at once, with Feature::kDp4a
// The row as the hardware names its operands.
MmaInstruction Unswapped(const MmaInstruction& row);
// nullptr: the target has no matrix instruction of that name.
const MmaInstruction* FindMma(const Target& target, std::string_view name);
// The row that the product's plan names. Every product has a plan from the pass instructions on, with a row of the target.
const MmaInstruction& RowOf(const ir::Gemm& gemm, const Target& target);
// The warp's instruction that the program has chosen; nullptr: the target has none of this shape and these types, or it lies on other lanes.
const MmaInstruction* RowOf(const ir::Mma& mma, const ir::Module& module, const Target& target);

}  // namespace kiln::target
