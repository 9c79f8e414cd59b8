// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/complements.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Complements, AloneAreChanged) {
  EXPECT_EQ(WithoutComplements("\tnot.b32 \t%r1, %r2;\n\t@%p1 not.b64 \t%rd1, %rd2;\n\tnot.b16 \t%rs1, 3;\n"),
            "\tsub.s32 \t%r1, -1, %r2;\n\t@%p1 sub.s64 \t%rd1, -1, %rd2;\n\tsub.s16 \t%rs1, -1, 3;\n");
  EXPECT_EQ(WithoutComplements("\t{xor.b32 %r1, %r2, -1;} xor.b16 %rs1, %rs2, -1; not.b32 %r3, %r4;"),
            "\t{sub.s32 %r1, -1, %r2;} sub.s16 %rs1, -1, %rs2; sub.s32 %r3, -1, %r4;");
  for (const char* text : {"", "\tnot.pred \t%p1, %p2;\n", "\txor.b32 \t%r1, %r2, 1;\n", "xor.b32 %r1, -1;", "mov.b32 %r1, -1;", "not.b32",
                           "not.b32 %r1;", "\tredux.sync.xor.b32 \t%r1, %r2, -1;\n", "\tatom.global.xor.b32 \t%r1, [%rd1], -1;\n"})
    EXPECT_EQ(WithoutComplements(text), text);
}

TEST(Complements, AreNotInThePtx) {
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    TestKernel k(target);
    for (llvm::Type* type : {k.builder.getInt16Ty(), k.builder.getInt32Ty(), k.builder.getInt64Ty()})
      k.Store(k.builder.CreateAnd(k.builder.CreateNot(k.Load(type)), k.Load(type)));
    ASSERT_EQ(k.Finish(), "");
    const auto code = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(code) << code.error();
    EXPECT_THAT(*code, Not(HasSubstr("not.b"))) << target.arch;
    EXPECT_THAT(*code, HasSubstr("sub.s32")) << target.arch;
  }
}

// Where ptxas forgets the complement, its code is that of the kernel without one.
TEST(Complements, ReachTheMachineCode) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const auto code = [&](std::string_view operations) {  // on %r2, which is 4
    return MachineCode(ptxas, WithoutComplements,
                       fmt::format(R"(	mov.u32 	%r1, %tid.x;
	shr.u32 	%r2, %r1, 4;
	setp.ne.b32 	%p1, %r2, 4;
	@%p1 bra 	END;
	{}
	mad.wide.u32 	%rd1, %r1, 4, %rd1;
	st.global.b32 	[%rd1], %r4;
END:
)",
                                   operations));
  };
  EXPECT_NE(code("not.b32 %r3, %r2; and.b32 %r4, %r3, 1;"), code("mov.b32 %r3, %r2; and.b32 %r4, %r3, 1;"));
  EXPECT_NE(code("not.b32 %r3, %r2; xor.b32 %r4, %r3, %r1;"), code("mov.b32 %r3, %r2; xor.b32 %r4, %r3, %r1;"));
  EXPECT_NE(code("xor.b32 %r3, %r2, -1; or.b32 %r4, %r3, %r1;"), code("mov.b32 %r3, %r2; or.b32 %r4, %r3, %r1;"));
}

}  // namespace
}  // namespace kiln::llvm_ir
