// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/unused_results.h"

#include <gtest/gtest.h>

namespace kiln::llvm_ir {
namespace {

TEST(UnusedResults, AreNotAskedFor) {
  EXPECT_EQ(WithoutUnusedResults("\tatom.global.add.f32 \t%r1, [%rd1+4], %r2;\n"), "\tred.global.add.f32 \t[%rd1+4], %r2;\n");
  EXPECT_EQ(WithoutUnusedResults("\tatom.acq_rel.gpu.global.max.s32 \t%r1, [%rd1], 5;\n"), "\tred.acq_rel.gpu.global.max.s32 \t[%rd1], 5;\n");
}

TEST(UnusedResults, OfOthersStay) {
  for (const char* text : {"\tatom.global.add.f32 \t%r1, [%rd1], %r2;\n\tst.global.b32 \t[%rd2], %r1;\n", "\tatom.global.exch.b32 \t%r1, [%rd1], %r2;\n",
                           "\tatom.global.cas.b32 \t%r1, [%rd1], %r2, %r3;\n", "\tatom.global.add.u64 \t%rd3, [%rd1], %rd2;\n",
                           "\tadd.s32 \t%r1, %r2, %r3;\n"})
    EXPECT_EQ(WithoutUnusedResults(text), text);
}

// What one function names says nothing of another's registers.
TEST(UnusedResults, AreThoseOfTheirFunction) {
  const char* other = "f()\n{\n\tst.global.b32 \t[%rd2], %r1;\n}\n";
  EXPECT_EQ(WithoutUnusedResults(std::string(other) + "g()\n{\n\tatom.global.or.b32 \t%r1, [%rd1], %r2;\n}\n"),
            std::string(other) + "g()\n{\n\tred.global.or.b32 \t[%rd1], %r2;\n}\n");
}

}  // namespace
}  // namespace kiln::llvm_ir
