// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/merged_halves.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/sass/sass.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::HasSubstr;

constexpr const char* kConverted = "\tcvt.rn.satfinite.e4m3x2.f32 \t%rs1, %r1, %r2;\n\tcvt.rn.satfinite.e5m2x2.f16x2 \t%rs3, %r3;\n";
constexpr const char* kWords = "\tcvt.u16.u32 \t%rs2, %r4;\n\tadd.s16 \t%rs4, %rs2, 1;\n";

std::string Hidden(int number, std::string_view high) {
  return fmt::format(".reg .b32 word{0}; .reg .b16 half{0}; cvt.u32.u16 word{0}, {1}; mov.b32 {{half{0}, _}}, word{0}; ", number, high);
}

// What follows the conversions and the words when mended.
std::string Mended(std::string_view statements) {
  const std::string before = std::string(kConverted) + kWords;
  const std::string after = WithoutMergedHalves(before + std::string(statements));
  EXPECT_TRUE(after.starts_with(before));
  return after.substr(before.size());
}

TEST(MergedHalves, OfWordsGoThroughAHalf) {
  EXPECT_EQ(Mended("\tmov.b32 \t%r5, {%rs1, %rs2};\n"), "\t{ " + Hidden(1, "%rs2") + "mov.b32 \t%r5, {%rs1, half1}; }\n");
  EXPECT_EQ(Mended("\tmov.b64 \t%rd5, {%rs1, %rs2, %rs3, %rs4};\n"),
            "\t{ " + Hidden(1, "%rs2") + Hidden(3, "%rs4") + "mov.b64 \t%rd5, {%rs1, half1, %rs3, half3}; }\n");
  EXPECT_EQ(Mended("\t@%p1 st.global.v2.b16 \t[%rd1+4], {%rs3, %rs4};\n"),
            "\t{ " + Hidden(1, "%rs4") + "@%p1 st.global.v2.b16 \t[%rd1+4], {%rs3, half1}; }\n");
}

TEST(MergedHalves, OfOtherPairsStay) {
  for (const char* pair : {"\tmov.b32 \t%r5, {%rs2, %rs1};\n", "\tmov.b32 \t%r5, {%rs1, %rs3};\n", "\tmov.b32 \t%r5, {%rs2, %rs4};\n",
                           "\tld.global.b16 \t%rs5, [%rd1];\n\tmov.b32 \t%r5, {%rs1, %rs5};\n", "\tst.global.v2.b32 \t[%rd1], {%r1, %r2};\n",
                           "\tmov.b32 \t{_, %rs5}, %r9;\n\tst.shared.v2.b16 \t[%rd1], {%rs1, %rs5};\n", "\tmov.b32 \t%r5, %r6;\n", "mov.b32", "\t;\n"})
    EXPECT_EQ(Mended(pair), pair);
  const std::string plain = "\tmov.b32 \t%r5, {%rs1, %rs2};\n";
  EXPECT_EQ(WithoutMergedHalves(plain), plain) << "no conversion";
  EXPECT_EQ(Mended("\tret;\n\n}\n" + plain), "\tret;\n\n}\n" + plain) << "another function's registers";
}

// A half that is loaded on one way and computed on the other.
TEST(MergedHalves, OfTwoKindsGoThroughAHalf) {
  EXPECT_THAT(Mended("\tld.global.b16 \t%rs5, [%rd1];\n\tmov.b16 \t%rs5, %rs4;\n\tmov.b32 \t%r5, {%rs1, %rs5};\n"), HasSubstr(Hidden(1, "%rs5")));
}

// Conversions of floats to 8-bit floats that take a high half along.
size_t Merges(std::string_view cubin) {
  constexpr unsigned kPackFloats = 0x23e, kNoRegister = 255;
  size_t merges = 0;
  for (const SassFunction& function : FunctionsOf(cubin)) {
    for (size_t at = 0; at + SassInstruction::kBytes <= function.code.size(); at += SassInstruction::kBytes) {
      const SassInstruction instruction(function.code.data() + at);
      merges += instruction.Opcode() == kPackFloats && instruction.C() != kNoRegister;
    }
  }
  return merges;
}

TEST(MergedHalves, OfWordsAreNotInTheMachineCode) {
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
    EXPECT_THAT(*code, HasSubstr("half1"));
    if (ptxas.empty()) continue;
    const auto made = RunPtxas(ptxas, target, *code);
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(Merges(made->cubin), 0u);
  }
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
}

}  // namespace
}  // namespace kiln::llvm_ir
