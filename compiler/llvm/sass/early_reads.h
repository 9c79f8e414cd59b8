// SPDX-License-Identifier: Apache-2.0
//
// What ptxas made, looked at for a fault of ptxas itself. A load of NVIDIA's GPUs does not hold up the instructions behind it: it names one of
// six counters ("scoreboards") that tells when its registers are written, and whoever reads them must wait for that counter. The waits are bits
// of the instructions, set by ptxas. ptxas 13.0 forgets some where a loop ends with many loads and its head reads their registers under a
// condition. Where the head is a barrier of some of a warp's threads, ptxas copies the barrier, and only the copy for threads that have parted
// waits. Then the head works with what the registers held before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// An instruction that reads a register while a load, or another instruction that counts on a scoreboard (MUFU, SHFL, S2R), still writes it.
struct EarlyRead {
  std::string function;
  uint64_t address;  // of the instruction, from the function's beginning
  unsigned reg;

  std::string Text() const;
};

// The first early read of an ELF file `cubin`, in the order of its functions. Nothing where it has none, where it is no ELF file, or where the
// instructions of `arch` ("sm_90a") are not known here. What is not known of an instruction is taken as harmless, so that what is found is
// a fault. Time in proportion to the code's length.
std::optional<EarlyRead> FindEarlyRead(std::string_view cubin, std::string_view arch);

}  // namespace kiln::llvm_ir
