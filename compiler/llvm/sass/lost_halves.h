// SPDX-License-Identifier: Apache-2.0
//
// What ptxas made, looked at for a fault of ptxas itself. ptxas keeps two values of 16 bits in one register. Where it has no register left for them,
// each goes to its own half of a word of the thread's memory. A store of 16 bits takes the low half of a register. ptxas 13.0 forgets that where it
// has just put a new value into the high half: it stores the low half once more, and the new value is lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// A store of a register's low half to where its high half belongs.
struct LostHalf {
  std::string function;
  uint64_t address;  // of the store, from the function's beginning
  unsigned reg;

  std::string Text() const;
};

// The first in an ELF file `cubin`. Nothing where it has none, where it is no ELF file, or where the instructions of `arch` ("sm_90a") are not
// known here. What is not known of an instruction is taken as harmless, so that what is found is a fault. Time in proportion to the
// code's length.
std::optional<LostHalf> FindLostHalf(std::string_view cubin, std::string_view arch);

}  // namespace kiln::llvm_ir
