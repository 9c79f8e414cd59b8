// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/packed_halves.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::HasSubstr;

// Converted: 1, 3 and 6. Halves: 5 and 7. Others: 2 and 4.
constexpr const char* kBefore =
    "\tcvt.rn.satfinite.e4m3x2.f32 \t%rs1, %r1, %r2;\n\tcvt.rn.satfinite.e5m2x2.f16x2 \t%rs3, %r3;\n\tcvt.rn.satfinite.e4m3x2.f32 \t%rs6, %r1, %r2;\n"
    "\tcvt.u16.u32 \t%rs2, %r4;\n\tadd.s16 \t%rs4, %rs2, 1;\n\tld.global.b16 \t%rs5, [%rd1];\n\tcvt.rn.f16.f32 \t%rs7, %r1;\n";

std::string Mended(std::string_view statements) {
  const std::string after = WithoutSharedPairs(std::string(kBefore) + std::string(statements));
  EXPECT_TRUE(after.starts_with(kBefore));
  return after.substr(std::string_view(kBefore).size());
}

constexpr const char* kSelector = ".reg .b32 lows; add.s32 lows, zero, 0x5410; ";

std::string Joined(int number, std::string_view low, std::string_view high, bool first = true) {
  return fmt::format(
      ".reg .b32 low{0}, high{0}, pair{0}; {3}cvt.u32.u16 low{0}, {1}; cvt.u32.u16 high{0}, {2}; prmt.b32 pair{0}, low{0}, high{0}, lows; ", number,
      low, high, first ? kSelector : "");
}

TEST(PackedHalves, OfOthersAreJoined) {
  EXPECT_EQ(Mended("\tmov.b32 \t%r5, {%rs1, %rs2};\n"), "\t{ " + Joined(0, "%rs1", "%rs2") + "mov.b32 %r5, pair0; }\n");
  EXPECT_EQ(Mended("\tmov.b64 \t%rd5, {%rs5, %rs7, %rs4, %rs3};\n"),
            "\t{ .reg .b32 low0, high0, pair0; mov.b32 pair0, {%rs5, %rs7}; " + Joined(2, "%rs4", "%rs3") + "mov.b64 %rd5, {pair0, pair2}; }\n");
  EXPECT_EQ(Mended("\tst.global.v2.b16 \t[%rd1+4], {%rs3, %rs4};\n"), "\t{ " + Joined(0, "%rs3", "%rs4") + "st.global.b32 [%rd1+4], pair0; }\n");
  EXPECT_EQ(Mended("\tst.shared.v4.b16 \t[%rd1], {%rs1, %rs2, %rs3, %rs4};\n"),
            "\t{ " + Joined(0, "%rs1", "%rs2") + Joined(2, "%rs3", "%rs4", false) + "st.shared.v2.b32 [%rd1], {pair0, pair2}; }\n");
}

TEST(PackedHalves, OfConstantsAreJoined) {
  const std::string pair = "\tmov.b32 \t%r5, {%rs8, %rs6};\n";
  for (const char* made : {"\tmov.b32 \t%r7, 0f3F800000;\n\tcvt.rn.satfinite.e5m2x2.f32 \t%rs8, %r1, %r7;\n",
                           "\tld.param.b32 \t%r7, [k_param_0];\n\tcvt.rn.satfinite.e5m2x2.f32 \t%rs8, %r7, %r1;\n",
                           "\tcvt.rn.satfinite.e4m3x2.f32 \t%rs8, %r1, 0f3F800000;\n"})
    EXPECT_EQ(Mended(made + pair), std::string(made) + "\t{ " + Joined(0, "%rs8", "%rs6") + "mov.b32 %r5, pair0; }\n");
  const std::string others = "\tcvt.rn.satfinite.e5m2x2.f32 \t%rs8, %r1, %r2;\n" + pair;
  EXPECT_EQ(Mended(others), others);
}

TEST(PackedHalves, WithAnotherReaderAreJoined) {
  for (const char* other : {"\tst.global.b16 \t[%rd1], %rs1;\n", "\tst.global.b16 \t[%rd1], %rs6;\n", "\tmov.b32 \t%r6, {%rs5, %rs1};\n"})
    EXPECT_EQ(Mended(other + std::string("\tmov.b32 \t%r5, {%rs1, %rs6};\n")),
              other + ("\t{ " + Joined(0, "%rs1", "%rs6") + "mov.b32 %r5, pair0; }\n"));
}

TEST(PackedHalves, OfWordsArePackedByAnUnknownSelector) {
  EXPECT_EQ(Mended("\tprmt.b32 \t%r5, %r6, 7, 0x5410U;\n"), fmt::format("\t{{ {}prmt.b32 %r5, %r6, 7, lows; }}\n", kSelector));
  const std::string words = "\tcvt.u32.u16 \t%r6, %rs1;\n\tcvt.u32.u16 \t%r7, %rs6;\n", pack = "\tprmt.b32 \t%r5, %r6, %r7, 0x5410U;\n";
  EXPECT_EQ(Mended(words + pack), words + pack) << "straight from floats";
  for (const char* other : {"\tst.global.b16 \t[%rd1], %rs1;\n", "\tst.global.b32 \t[%rd1], %r7;\n"})
    EXPECT_THAT(Mended(words + other + pack), HasSubstr("prmt.b32 %r5, %r6, %r7, lows;"));
  const std::string bytes = "\tprmt.b32 \t%r6, %r1, %r2, 0x3340U;\n\tprmt.b32 \t%r7, %r3, %r4, 0x3340U;\n\tst.global.b32 \t[%rd1], %r7;\n";
  EXPECT_EQ(Mended(bytes + pack), bytes + pack) << "four bytes";
  for (const char* other : {"\tprmt.b32 \t%r5, %r6, 7, 0x3340U;\n", "\tprmt.b32 \t%r5, %r6, %r7, %r8;\n"}) EXPECT_EQ(Mended(other), other);
}

// Of four halves that it packs in two words itself, ptxas may swap the low ones.
TEST(PackedHalves, AreNotPackedByPtxas) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const std::string code = MachineCode(ptxas, WithoutSharedPairs, R"(	ld.global.b32 	%r1, [%rd1];
	ld.global.b32 	%r2, [%rd1+4];
	cvt.u16.u32 	%rs1, %r4;
	ld.global.b16 	%rs2, [%rd1+16];
	cvt.rn.satfinite.e4m3x2.f32 	%rs3, %r1, %r2;
	and.b16 	%rs4, %rs3, 15;
	shr.u16 	%rs5, %rs2, 1;
	mov.b32 	%r5, {%rs4, %rs1};
	mov.b32 	%r6, {%rs1, %rs5};
	st.global.v2.b32 	[%rd1+40], {%r6, %r5};
)");
  constexpr std::array kByRegister = {0x216U, 0xc16U};  // PRMT whose selector is a register, or a uniform one
  EXPECT_EQ(CountInstructions(code, [&](SassInstruction i) { return std::ranges::find(kByRegister, i.Opcode()) != kByRegister.end(); }), 2u);
}

// A half that is loaded on one way and computed on the other.
TEST(PackedHalves, OfTwoKindsAreJoined) {
  for (const char* other : {"\tmov.b16 \t%rs5, %rs4;\n", "\t{ .reg .b32 word; cvt.u32.u16 word, %rs4; cvt.u16.u32 %rs5, word; }\n"})
    EXPECT_THAT(Mended(other + std::string("\tmov.b32 \t%r5, {%rs5, %rs1};\n")), HasSubstr(Joined(0, "%rs5", "%rs1")));
}

TEST(PackedHalves, OfOnePairStay) {
  for (const char* pair : {"\tmov.b32 \t%r5, {%rs1, %rs6};\n", "\tmov.b32 \t%r5, {%rs1, %rs5};\n", "\tmov.b32 \t%r5, {%rs7, %rs2};\n",
                           "\tst.global.v2.b32 \t[%rd1], {%r1, %r2};\n", "\tmov.b64 \t%rd5, {%r1, %r2};\n", "\tmov.b32 \t{_, %rs9}, %r9;\n",
                           "\tst.global.v4.b16 \t[%rd1], {%rs1, %rs3, %rs5, %rs2};\n", "\tmov.b32 \t%r5, %r6;\n", "mov.b32", "\t;\n", ""})
    EXPECT_EQ(Mended(pair), pair);
  const std::string plain = "\tmov.b32 \t%r5, {%rs4, %rs2};\n";
  EXPECT_EQ(WithoutSharedPairs(plain), plain) << "no conversion";
  EXPECT_EQ(Mended("\tret;\n\n}\n" + plain), "\tret;\n\n}\n" + plain) << "another function's registers";
}

TEST(PackedHalves, OfWordsAreNotMergedByPtxas) {
  const std::string ptxas = FindPtxas();
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated || !target.Has(target::Feature::kFp8Convert)) continue;
    SCOPED_TRACE(target.arch);
    TestKernel k(target);
    llvm::IRBuilderBase& b = k.builder;
    llvm::Value* word = b.CreateAdd(k.Load(b.getInt16Ty()), b.getInt16(7));
    for (int i = 0; i < 3; ++i) {
      llvm::Value* narrow =
          b.CreateIntrinsic(llvm::Intrinsic::nvvm_ff_to_e4m3x2_rn, llvm::ArrayRef<llvm::Value*>{k.Load(b.getFloatTy()), k.Load(b.getFloatTy())});
      llvm::Value* pair = llvm::PoisonValue::get(llvm::FixedVectorType::get(b.getInt16Ty(), 2));
      k.Store(b.CreateInsertElement(b.CreateInsertElement(pair, narrow, uint64_t(0)), word, uint64_t(1)));
    }
    ASSERT_EQ(k.Finish(), "");
    const auto code = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(code) << code.error();
    EXPECT_THAT(*code, HasSubstr("prmt.b32 pair0"));
    if (ptxas.empty()) continue;
    const auto made = RunPtxas(ptxas, target, *code);
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(CountInstructions(made->cubin, [](SassInstruction i) { return i.Opcode() == kPackFloats && i.C() != kNoRegister; }), 0u);
  }
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
}

TEST(PackedHalves, KeepTheirMasks) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  TestKernel k(**target::Find("cuda:sm_90a"));
  llvm::IRBuilderBase& b = k.builder;
  llvm::Value* bits = b.CreateBitCast(b.CreateFPTrunc(k.Load(b.getFloatTy()), b.getBFloatTy()), b.getInt16Ty());
  llvm::Value* pair = b.CreateInsertElement(llvm::PoisonValue::get(llvm::FixedVectorType::get(b.getInt16Ty(), 2)), b.CreateAnd(bits, 5), uint64_t(0));
  k.Store(b.CreateInsertElement(pair, k.Load(b.getInt16Ty()), uint64_t(1)));
  ASSERT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(code) << code.error();
  const auto made = RunPtxas(ptxas, k.target, *code);
  ASSERT_TRUE(made) << made.error().text;
  constexpr unsigned kLogical = 0x812;  // LOP3 with a constant
  EXPECT_EQ(CountInstructions(made->cubin, [](SassInstruction i) { return i.Opcode() == kLogical && i.B() == 5; }), 1u);
}

}  // namespace
}  // namespace kiln::llvm_ir
