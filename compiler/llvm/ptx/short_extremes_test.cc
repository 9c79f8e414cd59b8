// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/short_extremes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ShortExtremes, AreOfWords) {
  EXPECT_THAT(WithoutShortExtremes("\tmax.s16 \t%rs9, %rs1, 7;\n"), HasSubstr("mov.b16 short0, %rs1; mov.b16 short1, 7; cvt.s32.s16 word0, short0;"));
  EXPECT_THAT(WithoutShortExtremes("\tmin.u16 \t%rs9, %rs1, %rs2;\n"), HasSubstr("min.u32 word0, word0, word1; cvt.u16.u32 %rs9, word0; }\n"));
  for (const char* other : {"\tmin.f16 \t%rs9, %rs7, %rs5;\n", "\tmin.u32 \t%r9, %r1, %r2;\n", "\tmax.bf16 \t%rs9, %rs7, %rs5;\n"})
    EXPECT_EQ(WithoutShortExtremes(other), other);
}

TEST(ShortExtremes, AreNotInThePtx) {
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    TestKernel k(target);
    for (const auto which : {llvm::Intrinsic::smin, llvm::Intrinsic::umax})
      k.Store(k.builder.CreateBinaryIntrinsic(which, k.Load(k.builder.getInt16Ty()), k.Load(k.builder.getInt16Ty())));
    ASSERT_EQ(k.Finish(), "");
    const auto code = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(code) << code.error();
    EXPECT_THAT(*code, Not(ContainsRegex("(min|max)\\.[su]16"))) << target.arch;
  }
}

// Where two maxima are bounded by 0, ptxas computes no two halves at once.
TEST(ShortExtremes, KeepTheirBounds) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  struct Extreme : SassInstruction {
    explicit Extreme(const SassInstruction& instruction) : SassInstruction(instruction) {}
    bool Is() const { return Opcode() == 0x248; }            // VIMNMX of two registers
    bool OfHalves() const { return (high_ >> 9 & 1) != 0; }  // two at once, as nvdisasm shows it
  };
  const auto of_halves = [&](std::string_view operations) {
    const std::string code = MachineCode(ptxas, WithoutShortExtremes, operations);
    return CountInstructions(code, [](SassInstruction i) { return Extreme(i).Is() && Extreme(i).OfHalves(); });
  };
  EXPECT_EQ(of_halves("\tld.global.v2.b32 \t{%r1, %r2}, [%rd1];\n\tmax.s16x2 \t%r3, %r1, %r2;\n\tst.global.b32 \t[%rd1], %r3;\n"), 1u);
  EXPECT_EQ(of_halves(R"(	ld.global.b16 	%rs1, [%rd1];
	ld.global.b16 	%rs2, [%rd1+16];
	ld.global.b16 	%rs3, [%rd1+32];
	ld.global.b16 	%rs4, [%rd1+48];
	max.s16 	%rs5, %rs1, %rs2;
	max.s16 	%rs6, %rs3, %rs4;
	max.s16 	%rs7, %rs5, 0;
	max.s16 	%rs8, %rs6, 0;
	st.global.b16 	[%rd1+64], %rs7;
	st.global.b16 	[%rd1+80], %rs8;
)"),
            0u);
}

}  // namespace
}  // namespace kiln::llvm_ir
