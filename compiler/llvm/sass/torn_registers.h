// SPDX-License-Identifier: Apache-2.0
//
// What ptxas made, looked at for a fault of ptxas itself. Beside the registers of each thread a warp has some of its own ("uniform" ones). What
// counts in one of them must be executed once for the whole warp. Where threads repeat an attempt (a compare-and-swap) until it succeeds,
// they leave the loop one after another, and are apart until an instruction gathers them. Behind a loop of attempts that ptxas 13.0 made itself, it
// lets them count on a register of the warp before that: the count runs ahead of most threads. Our own PTX has such loops written out (spins.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// An instruction that computes a register of the warp while the warp's threads are apart, and others of them still read the register.
struct TornRegister {
  std::string function;
  uint64_t address;  // of the instruction, from the function's beginning
  unsigned reg;

  std::string Text() const;
};

// The first in an ELF file `cubin`. Nothing where it has none, where it is no ELF file, or where the instructions of `arch` ("sm_90a") are not
// known here. What is not known of an instruction is taken as harmless, so that what is found is a fault. Time in proportion to the
// code's length.
std::optional<TornRegister> FindTornRegister(std::string_view cubin, std::string_view arch);

}  // namespace kiln::llvm_ir
