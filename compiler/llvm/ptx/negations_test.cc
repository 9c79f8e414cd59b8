// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/negations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Negations, OfWhatIsShiftedAreDifferences) {
  for (const char* reader : {"\tshr.s32 \t%r3, %r1, 1;\n", "\tmax.s32 \t%r3, %r4, %r1;\n", "\tmov.b32 \t%r3, %r1;\n", "\tneg.s32 \t%r3, %r1;\n",
                             "\t{ .reg .b64 wide; mul.wide.s32 wide, %r1, 5; }\n", "\t@%p1 shr.s32 \t%r3, %r1, 1;\n"})
    EXPECT_THAT(WithoutNegations(std::string("\tneg.s32 \t%r1, %r2;\n") + reader),
                StartsWith("\t{ .reg .b32 none; mov.u32 none, %smid; shr.u32 none, none, 31; sub.s32 %r1, none, %r2; }\n" + std::string(reader)));
  EXPECT_EQ(WithoutNegations("\tneg.s16 \t%rs1, %rs2;\n\tmin.s16 \t%rs3, %rs1, 5;\n"),
            "\t{ .reg .b32 none; .reg .b16 short_none; mov.u32 none, %smid; shr.u32 none, none, 31; cvt.u16.u32 short_none, none; "
            "sub.s16 %rs1, short_none, %rs2; }\n\tmin.s16 \t%rs3, %rs1, 5;\n");
}

TEST(Negations, OfSumsStay) {
  for (const char* reader : {"add.s32", "sub.s32", "mul.lo.s32", "and.b32", "setp.eq.s32", "selp.b32"}) {
    const std::string text = fmt::format("\tneg.s32 \t%r1, %r2;\n\t{} \t%r3, %r1, %r4;\n\tshr.s32 \t%r5, %r3, 1;\n", reader);
    EXPECT_EQ(WithoutNegations(text), text);
  }
  const std::string other = ".func f()\n{\n\tneg.s32 \t%r1, %r2;\n\n}\n.func g()\n{\n\tshr.s32 \t%r5, %r1, 1;\n\n}\n";
  EXPECT_EQ(WithoutNegations(other), other) << "another function's register";
}

TEST(Negations, OthersStayAsTheyAre) {
  for (const char* text : {"", ".func f()\n{\n\tneg.s64 \t%rd1, %rd2;\n\tneg.f32 \t%r1, %r2;\n\tneg.f16 \t%rs1, %rs2;\n}\n",
                           ".func f()\n{\n\tsub.s32 \t%r1, %r2, %r3;\n}\n.func g()\n{\n\tret;\n}\n"})
    EXPECT_EQ(WithoutNegations(text), text);
}

TEST(Negations, AreNotInThePtx) {
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    for (const unsigned bits : {16U, 32U}) {
      TestKernel k(target);
      llvm::IRBuilderBase& b = k.builder;
      llvm::Type* type = b.getIntNTy(bits);
      k.Store(b.CreateAdd(b.CreateAShr(b.CreateNeg(k.Load(type)), 1), k.Load(type)));
      ASSERT_EQ(k.Finish(), "");
      const auto code = EmitAssembly(k.module, *k.machine);
      ASSERT_TRUE(code) << code.error();
      EXPECT_THAT(*code, Not(HasSubstr("neg.s"))) << target.arch;
      EXPECT_THAT(*code, ContainsRegex("sub.s(16 %rs|32 %r)[0-9]+, (short_)?none")) << target.arch;
    }
  }
}

// A kernel in which ptxas negates what is shifted behind the shift: block 1 stores 0 as the first element, where (−1 >> 1) + 0 is −1.
constexpr std::string_view kShift = R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 1 p)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<16>;
	.reg .b64 	%rd<9>;
	ld.param.b64 	%rd1, [p];
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %ctaid.y;
	shl.b32 	%r4, %r1, 2;
	cvt.u64.u32 	%rd2, %r3;
	cvt.u64.u32 	%rd3, %r2;
	cvt.u32.u64 	%r15, %rd3;
	setp.eq.b32 	%p1, %r15, 0;
	sub.s32 	%r5, -1, %r1;
	and.b32 	%r6, %r5, 3;
	neg.s32 	%r7, %r15;
	shr.s32 	%r8, %r7, 1;
	setp.eq.b32 	%p2, %r15, 1;
	and.b32 	%r9, %r1, 28;
	shl.b32 	%r10, %r15, 3;
	selp.b32 	%r11, %r9, %r10, %p2;
	add.s32 	%r12, %r8, %r11;
	selp.b32 	%r13, %r6, %r12, %p1;
	cvt.rn.f32.s32 	%r14, %r13;
	cvt.u64.u32 	%rd4, %r4;
	shl.b64 	%rd5, %rd3, 7;
	shl.b64 	%rd6, %rd2, 8;
	add.s64 	%rd7, %rd1, %rd6;
	add.s64 	%rd8, %rd7, %rd5;
	add.s64 	%rd8, %rd8, %rd4;
	st.global.b32 	[%rd8], %r14;
	ret;
}
)";

// LEA.HI.SX32; the fields are what nvdisasm shows.
struct SignedShift : SassInstruction {
  explicit SignedShift(const SassInstruction& instruction) : SassInstruction(instruction) {}
  bool Is() const { return Opcode() == 0x211 && (high_ >> 9 & 1) != 0; }
  bool Negates() const { return (high_ >> 8 & 1) != 0; }  // what it shifts
};

TEST(Negations, ReachMinimaAndMaximaOfThree) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const auto code = [&](std::string_view second) {
    return MachineCode(ptxas, WithoutNegations,
                       fmt::format(R"(	ld.global.v2.b32 	{{%r1, %r2}}, [%rd1];
	{} 	%r3, %r2;
	max.s32 	%r5, %r1, %r3;
	max.s32 	%r6, %r5, %r4;
	st.global.b32 	[%rd1], %r6;
)",
                                   second));
  };
  EXPECT_NE(code("neg.s32"), code("mov.b32"));
}

TEST(Negations, AreBeforeTheShift) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const auto negated_shifts = [&](const std::string& ptx) {
    const auto made = RunPtxas(ptxas, **target::Find("cuda:sm_90a"), ptx);
    EXPECT_TRUE(made) << made.error().text;
    return made ? CountInstructions(made->cubin, [](SassInstruction i) { return SignedShift(i).Is() && SignedShift(i).Negates(); }) : 0;
  };
  if (negated_shifts(std::string(kShift)) == 0) GTEST_SKIP() << "SKIPPED: this ptxas makes none of any kernel here";
  EXPECT_EQ(negated_shifts(WithoutNegations(kShift)), 0u);
}

}  // namespace
}  // namespace kiln::llvm_ir
