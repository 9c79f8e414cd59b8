// SPDX-License-Identifier: Apache-2.0
//
// How many registers the values of a kernel would take, before any of them is given one.
#pragma once

#include <cstddef>

namespace llvm {
class Module;
}

namespace kiln::llvm_ir {

// Any register of these may stand in any instruction. What else a thread has, as CDNA's accumulators, takes moves.
inline constexpr size_t kNamedRegisters = 256;

struct Pressure {
  // The most 32-bit registers that the values of one thread take at any place. Conditions take none, nor do addresses at a constant offset from
  // another, unless they are chosen among others or stored.
  size_t registers = 0;
  // How many more values than kNamedRegisters are alive, added up over all instructions: about what an allocator has to look for a place for. An
  // integer or address of 64 bits that is computed and used in one block counts twice: AMD's arithmetic of them is that of halves, and for each
  // half the allocator tries to move all others of the block.
  size_t beyond = 0;
};
// Of the function with the most; `beyond` of all together. Counting ends where more than `enough` registers are alive. Time in proportion to the
// code and to `enough` for each block.
Pressure PressureOf(const llvm::Module& module, size_t enough);

}  // namespace kiln::llvm_ir
