// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/stored_bytes.h"

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

TEST(StoredBytes, OfFloatsComeFromWords) {
  const std::string before = "\tadd.rn.bf16 \t%rs1, %rs3, %rs3;\n\tcvt.u16.u32 \t%rs2, %r1;\n";
  EXPECT_EQ(WithoutStoredBytesOfFloats(before + "\tst.shared.b8 \t[%rd1+3], %rs1;\n"),
            before + "\t{ .reg .b32 word0; cvt.u32.u16 word0, %rs1; st.shared.b8 [%rd1+3], word0; }\n");
  EXPECT_THAT(WithoutStoredBytesOfFloats(before + "\tst.global.v2.b8 \t[%rd1], {%rs2, %rs1};\n"),
              HasSubstr(", %rs2; .reg .b32 word1; cvt.u32.u16 word1, %rs1; st.global.v2.b8 [%rd1], {word0, word1}; }\n"));
  for (const char* other : {"\tst.global.b8 \t[%rd1], %rs2;\n", "\tst.global.b16 \t[%rd1], %rs1;\n", "\tst.global.b8 \t[%rd1], 7;\n"})
    EXPECT_EQ(WithoutStoredBytesOfFloats(before + other), before + other);
}

TEST(StoredBytes, OfFloatsAreNotConverted) {
  const std::string ptxas = FindPtxas();
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    SCOPED_TRACE(target.arch);
    TestKernel k(target);
    llvm::Value* half = k.builder.CreateFPTrunc(k.Load(k.builder.getFloatTy()), k.builder.getHalfTy());
    k.Store(k.builder.CreateTrunc(k.builder.CreateBitCast(half, k.builder.getInt16Ty()), k.builder.getInt8Ty()));
    EXPECT_EQ(k.Finish(), "");
    const auto ptx = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(ptx) << ptx.error();
    EXPECT_THAT(*ptx, Not(ContainsRegex("st[.]global[.]b8 [^;]*%rs")));
    if (ptxas.empty()) continue;
    const auto made = RunPtxas(ptxas, target, *ptx);
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(CountInstructions(made->cubin, [](SassInstruction i) { return i.Opcode() == kFloatToInteger; }), 0u);
  }
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
}

}  // namespace
}  // namespace kiln::llvm_ir
