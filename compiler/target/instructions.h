// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions as rows (nvptx.def, amdgpu.def). Choosing one is a query with a cost (infer/instruction); what a row says
// about fragments is all that layouts and lowering know about it.
#pragma once

#include <span>
#include <string_view>

#include "compiler/target/target.h"
#include "ir/layout.h"
#include "ir/type.h"

namespace kiln::target {

// One warp computes c[m, n] += a[m, k] · b[n, k]ᵀ. Layouts map to (lane, register); a register is one element, and elements that
// share a 32-bit word of the instruction's operand have neighbouring numbers, low bits first.
struct MmaInstruction {
  std::string_view name;  // "mma.m16n8k16.f32.f16"; unique
  Feature required;
  int m, n, k;
  ir::DType a, b, c;
  ir::Layout a_layout;         // (m, k)
  ir::Layout b_layout;         // (n, k)
  ir::Layout c_layout;         // (m, n)
  int warps = 1;               // that compute it together; lanes of the layouts are theirs. 4: wgmma, which reads the operand without a
                               // layout (and the other one, unless it is a fragment) from shared memory itself
  std::string_view intrinsic;  // LLVM's name, without the suffix of overloaded types
  bool swapped = false;        // the row computes cᵀ = b · aᵀ: what the hardware calls A is b here; c_layout is as c lies
  double cycles;               // issue cycles of one instruction on one multiprocessor's share; a cost-model hint

  // Whether registers may hold the operand.
  bool ReadsA() const { return a_layout.rank() > 0; }
  bool ReadsB() const { return b_layout.rank() > 0; }
};

// The rows this target has, in the table's order. Where an instruction exists but is emulated by the hardware's assembler
// (fp8 mma.sync on sm_90) its cycles say so.
std::span<const MmaInstruction> MmaInstructions(const Target& target);
// The row as the hardware names its operands.
MmaInstruction Unswapped(const MmaInstruction& row);
const MmaInstruction* FindMma(const Target& target, std::string_view name);

}  // namespace kiln::target
