// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/taken_bytes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

TEST(TakenBytes, AreMasked) {
  const auto masked = [](std::string_view operands, int mask) {
    return fmt::format("\t{{ .reg .b32 bytes; prmt.b32 bytes, {}; and.b32 %r1, bytes, {}; }}\n", operands, mask);
  };
  for (const auto& [operands, mask] : {std::pair{"%r2, 0, 0x7771U", 0xff},
                                       {"%r2, 0, 0x7773U", 0xff},
                                       {"%r2, 0, 0x7701U", 0xffff},
                                       {"%r2, 0, 0x4434U", 0xff00},
                                       {"0, %r2, 0x3335U", 0xff},
                                       {"0, %r2, 0x0074U", 0xffff},
                                       {"%r2, 0, 0x5410U", 0xffff}})
    EXPECT_EQ(WithoutTakenBytes(fmt::format("\tprmt.b32 \t%r1, {};\n", operands)), masked(operands, mask));
  for (const char* other : {"\tprmt.b32 \t%r1, %r2, %r3, 0x3340U;\n", "\tprmt.b32 \t%r1, %r2, %r3, 0x5410U;\n", "\tprmt.b32 \t%r1, %r2, 0, %r3;\n",
                            "\tprmt.b32 \t%r1, %r2;\n", "\tadd.s32 \t%r1, %r2, 0;\n", "\tadd.s32 \t%r1, %r2, 0x10;\n"})
    EXPECT_EQ(WithoutTakenBytes(other), other);
}

TEST(TakenBytes, OfAnyOrderAreNotKnown) {
  for (const auto& [words, choice] : {std::pair{"%r2, %r3", "0x21U"}, {"%r2, %r2", "0x0123U"}, {"%r2, 0", "0x1044U"}, {"%r2, %r3", "0x7771U"}})
    EXPECT_EQ(WithoutTakenBytes(fmt::format("\tprmt.b32 \t%r1, {}, {};\n", words, choice)),
              fmt::format("\t{{ .reg .b32 choice; add.s32 choice, zero, {1}; prmt.b32 %r1, {0}, choice; }}\n", words, choice));
  EXPECT_TRUE(WithoutTakenBytes("f()\n{\n\tprmt.b32 \t%r1, %r2, %r3, 0x21U;\n}\n").starts_with("f()\n{\n\t.reg .b32 \tzero;\n"));
}

// ptxas takes the byte a second time, from what the selection has written.
TEST(TakenBytes, AreTakenOnce) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const std::string code = MachineCode(ptxas, WithoutTakenBytes, R"(	ld.global.b32 	%r1, [%rd1];
	ld.global.b32 	%r2, [%rd1+4];
	add.s32 	%r3, %r2, 5;
	prmt.b32 	%r5, %r1, 0, 0x7771U;
	cvt.u16.u32 	%rs1, %r5;
	selp.b32 	%r6, %r3, %r1, %p1;
	st.global.b32 	[%rd1+16], %r6;
	cvt.u32.u16 	%r7, %rs1;
	mul.lo.s32 	%r8, %r7, %r4;
	st.global.b32 	[%rd1+20], %r8;
	st.global.b16 	[%rd1+24], %rs1;
)");
  constexpr unsigned kPermute = 0x816;  // PRMT
  EXPECT_EQ(CountInstructions(code, [](SassInstruction i) { return i.Opcode() == kPermute; }), 1u);
}

}  // namespace
}  // namespace kiln::llvm_ir
