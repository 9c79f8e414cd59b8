// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/stored_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::HasSubstr;

TEST(StoredParts, OfFloatsAreNarrowed) {
  const std::string before =
      "\tadd.rn.bf16 \t%rs1, %rs3, %rs3;\n\tcvt.u16.u32 \t%rs2, %r1;\n\tcvt.rn.f32.s32 \t%r2, %r1;\n\tadd.rn.f64 \t%rd2, %rd3, %rd3;\n";
  const auto after = [&](const std::string& store) { return WithoutStoredPartsOfFloats(before + store).substr(before.size()); };
  EXPECT_EQ(after("\tst.shared.b8 \t[%rd1+3], %rs1;\n"), "\t{ .reg .b32 part0; cvt.u32.u16 part0, %rs1; st.shared.b8 [%rd1+3], part0; }\n");
  EXPECT_THAT(after("\tst.global.v2.b8 \t[%rd1], {%rs2, %rs1};\n"),
              HasSubstr("cvt.u32.u16 part1, %rs1; st.global.v2.b8 [%rd1], {part0, part1}; }\n"));
  EXPECT_EQ(after("\tst.global.b8 \t[%rd1], %r2;\n"), "\t{ .reg .b16 part0; cvt.u16.u32 part0, %r2; st.global.b8 [%rd1], part0; }\n");
  EXPECT_EQ(after("\tst.global.b16 \t[%rd1], %r2;\n"), "\t{ .reg .b16 part0; cvt.u16.u32 part0, %r2; st.global.b16 [%rd1], part0; }\n");
  EXPECT_EQ(after("\tst.global.b16 \t[%rd1], %rd2;\n"), "\t{ .reg .b16 part0; cvt.u16.u64 part0, %rd2; st.global.b16 [%rd1], part0; }\n");
  EXPECT_EQ(after("\tst.global.b32 \t[%rd1], %rd2;\n"), "\t{ .reg .b32 part0; cvt.u32.u64 part0, %rd2; st.global.b32 [%rd1], part0; }\n");
  for (const char* whole : {"\tst.global.b8 \t[%rd1], %rs2;\n", "\tst.global.b16 \t[%rd1], %rs1;\n", "\tst.global.b8 \t[%rd1], 7;\n",
                            "\tst.global.b32 \t[%rd1], %r2;\n", "\tst.global.b64 \t[%rd1], %rd2;\n", "\tst.global.b16 \t[%rd1], %r1;\n"})
    EXPECT_EQ(after(whole), whole);
}

TEST(StoredParts, OfFloatsAreNotConverted) {
  const std::string ptxas = FindPtxas();
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    SCOPED_TRACE(target.arch);
    TestKernel k(target);
    llvm::IRBuilderBase& b = k.builder;
    llvm::Value* single = b.CreateFAdd(k.Load(b.getFloatTy()), k.Load(b.getFloatTy()));
    llvm::Value* twice = b.CreateFAdd(k.Load(b.getDoubleTy()), k.Load(b.getDoubleTy()));
    for (llvm::Value* number : {b.CreateFPTrunc(single, b.getHalfTy()), single, twice}) {
      const unsigned bits = number->getType()->getScalarSizeInBits();
      llvm::Value* integer = b.CreateBitCast(number, b.getIntNTy(bits));
      for (unsigned part = 8; part < bits; part *= 2) k.Store(b.CreateTrunc(integer, b.getIntNTy(part)));
    }
    EXPECT_EQ(k.Finish(), "");
    const auto ptx = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(ptx) << ptx.error();
    EXPECT_THAT(*ptx, HasSubstr("part0;"));
    if (ptxas.empty()) continue;
    const auto made = RunPtxas(ptxas, target, *ptx);
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(CountInstructions(made->cubin, [](SassInstruction i) { return ConvertsToInteger(i); }), 0u);
  }
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
}

}  // namespace
}  // namespace kiln::llvm_ir
