// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/high_halves.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

TEST(HighHalves, OfShortValuesAreShifted) {
  const auto shifted = [](std::string_view low, std::string_view high, std::string_view word) {
    return fmt::format("\t{{ .reg .b32 high; shr.u32 high, {2}, 16; {0}cvt.u16.u32 {1}, high; }}\n", low, high, word);
  };
  for (const char* before : {"\tld.global.s16 \t%r1, [%rd1];\n", "\tcvt.u32.u16 \t%r1, %rs5;\n", "\tld.shared.v2.b8 \t{%r2, %r1}, [%rd1];\n",
                             "\tld.global.b8 \t%r2, [%rd1];\n\tmov.b32 \t%r1, %r2;\n", "\tld.global.b32 \t%r1, [%rd1];\n\tcvt.s32.s8 \t%r1, %rs5;\n",
                             "\tselp.b32 \t%r1, %r3, %r2, %p1;\n\tld.global.b16 \t%r2, [%rd1];\n"}) {
    EXPECT_EQ(WithoutHighHalvesOfShortValues(before + std::string("\tmov.b32 \t{_, %rs1}, %r1;\n")), before + shifted("", "%rs1", "%r1"));
    EXPECT_EQ(WithoutHighHalvesOfShortValues(before + std::string("\tmov.b32 \t{%rs2, %rs1}, %r1;\n")),
              before + shifted("mov.b32 {%rs2, _}, %r1; ", "%rs1", "%r1"));
  }
}

TEST(HighHalves, OfWordsStay) {
  for (const char* before : {"\tld.global.b32 \t%r1, [%rd1];\n", "\tcvt.rn.f16x2.f32 \t%r1, %r2, %r3;\n", "\tadd.s32 \t%r1, %r2, %r3;\n",
                             "\tld.global.v2.b32 \t{%r2, %r3}, [%rd1];\n\tselp.b32 \t%r1, %r3, %r2, %p1;\n"}) {
    const std::string text = before + std::string("\tmov.b32 \t{_, %rs1}, %r1;\n\tmov.b32 \t{%rs3, %rs2}, %r1;\n");
    EXPECT_EQ(WithoutHighHalvesOfShortValues(text), text);
  }
  const std::string low = "\tld.global.b8 \t%r1, [%rd1];\n\tmov.b32 \t{%rs1, _}, %r1;\n";
  EXPECT_EQ(WithoutHighHalvesOfShortValues(low), low);
}

// ptxas stores the value itself, without an instruction between.
TEST(HighHalves, ReachTheMachineCode) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const std::string code = MachineCode(ptxas, WithoutHighHalvesOfShortValues,
                                       "\tld.global.s16 \t%r1, [%rd1];\n\tmov.b32 \t{_, %rs1}, %r1;\n\tst.global.b16 \t[%rd1+4], %rs1;\n");
  constexpr unsigned kShift = 0x819;  // SHF
  EXPECT_EQ(CountInstructions(code, [](SassInstruction i) { return i.Opcode() == kShift; }), 1u);
}

}  // namespace
}  // namespace kiln::llvm_ir
