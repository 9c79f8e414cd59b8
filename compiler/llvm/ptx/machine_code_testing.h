// SPDX-License-Identifier: Apache-2.0
//
// What ptxas made, for the tests of this folder.
#pragma once

#include <string_view>

#include "compiler/llvm/sass/sass.h"

namespace kiln::llvm_ir {

constexpr unsigned kNoRegister = 255;    // RZ
constexpr unsigned kPackFloats = 0x23e;  // F2FP; of 8-bit floats, with the low half of C as the high half

inline bool ConvertsToInteger(const SassInstruction& instruction) {
  constexpr unsigned kOfFloat = 0x305, kOfDouble = 0x311, kPacked = 0x243;  // F2I, F2I of or to 64 bits, F2IP
  return instruction.Opcode() == kOfFloat || instruction.Opcode() == kOfDouble || instruction.Opcode() == kPacked;
}

template <typename Matches>
size_t CountInstructions(std::string_view cubin, const Matches& matches) {
  size_t count = 0;
  for (const SassFunction& function : FunctionsOf(cubin))
    for (size_t at = 0; at + SassInstruction::kBytes <= function.code.size(); at += SassInstruction::kBytes)
      count += matches(SassInstruction(function.code.data() + at));
  return count;
}

}  // namespace kiln::llvm_ir
