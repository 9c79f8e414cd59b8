// SPDX-License-Identifier: Apache-2.0
//
// What ptxas made, for the tests of this folder.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/sass/sass.h"

namespace kiln::llvm_ir {

constexpr unsigned kNoRegister = 255;     // RZ
constexpr unsigned kHalfProduct = 0x23c;  // HMMA
constexpr unsigned kPackFloats = 0x23e;   // F2FP; of 8-bit floats, with the low half of C as the high half

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

// What ptxas makes of a rewritten kernel for sm_90a; %p1 says whether its fourth word is 7.
inline std::string MachineCode(const std::string& ptxas, std::string (*rewrite)(std::string_view), std::string_view operations) {
  const std::string ptx = fmt::format(R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 4 p) {{
	.reg .pred %p<2>;
	.reg .b16 %rs<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<2>;
	ld.param.b64 	%rd1, [p];
	ld.global.b32 	%r4, [%rd1+12];
	setp.eq.b32 	%p1, %r4, 7;
{}	ret;
}}
)",
                                      operations);
  const auto made = RunPtxas(ptxas, **target::Find("cuda:sm_90a"), rewrite(ptx));
  EXPECT_TRUE(made) << made.error().text;
  return made ? made->cubin : std::string();
}

}  // namespace kiln::llvm_ir
