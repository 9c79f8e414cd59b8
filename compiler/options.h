// SPDX-License-Identifier: Apache-2.0
//
// What every pass may read: the target and the request's options.
#pragma once

#include "compiler/target/target.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::compiler {

// The weight of a block of code: LLVM's passes over blocks take about as long for one block as other passes for so many instructions.
constexpr int64_t kCodeOfBlock = 16;

struct Context {
  const target::Target* target;
  v1::CompileOptions options;

  // Tensors' addresses are multiples of so many bytes.
  int64_t pointer_alignment() const { return options.pointer_alignment() == 0 ? 16 : options.pointer_alignment(); }
  // The most registers of a thread that fragments may take at a time.
  int64_t max_fragment_registers() const { return options.max_fragment_registers() == 0 ? 640 : options.max_fragment_registers(); }
  // The most statements that an unrolled loop may become.
  int64_t max_unrolled() const { return options.max_unrolled() == 0 ? 4096 : options.max_unrolled(); }
  // The most instructions of LLVM that the kernels may have before they are optimized, as llvm_ir::CodeOf counts them. LLVM takes time in
  // proportion to them. For AMD's GPUs it also orders the branches, which takes time quadratic in their number.
  int64_t max_code() const {
    if (options.max_code() != 0) return options.max_code();
    return target->family == target::Family::kAmdgpu && !target->emulated ? 60'000 : 600'000;
  }
  // The most values beyond those that registers hold, added up over all instructions (llvm_ir::Pressure::beyond), in code that AMD's backend
  // optimizes. Its register allocator tries every register for each value that it has no place for, and all that stand in each.
  int64_t max_crowding() const { return options.max_crowding() == 0 ? 64'000 : options.max_crowding(); }
};

}  // namespace kiln::compiler
