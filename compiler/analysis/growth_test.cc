// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/growth.h"

#include <gtest/gtest.h>

#include <string>

#include "ir/text/parse.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// How the count of a loop grows with the grid's first axis, %bx.
Growth GrowthOf(const std::string& count, const std::string& before = "", const std::string& thread = "") {
  ir::Diagnostics diagnostics;
  const auto module = ir::Parse("kiln 1\nfunc @f[%n](%A: global i32[%n])" + thread + " {\n  kernel @main grid(8, 8) threads 32 blocks(%bx, %by) {\n" +
                                    before + "    for serial %k in " + count + " {\n    }\n  }\n}\n",
                                diagnostics);
  EXPECT_TRUE(module) << (diagnostics.all().empty() ? "" : diagnostics.all().front().message);
  if (!module) return Growth::kUnknown;
  const ir::Kernel& kernel = module->kernels[0];
  Growths growths(*module, kernel.body);
  return growths.Of(std::get<ir::For>(kernel.body.back().op).extents[0], kernel.block_vars[0]);
}

TEST(Growths, OfTheBlockOfACausalMask) {
  EXPECT_EQ(GrowthOf("min((%n + 127) // 128, ((%bx + 1) * 128 + %n - 64 + 127) // 128)"), Growth::kUp);
  EXPECT_EQ(GrowthOf("%n - %bx * 4"), Growth::kDown);
  EXPECT_EQ(GrowthOf("%bx * -4 + %n"), Growth::kDown);
}

TEST(Growths, SeeThroughLets) {
  EXPECT_EQ(GrowthOf("%last", "    let %last = min(%n, %bx * 4)\n"), Growth::kUp);
  EXPECT_EQ(GrowthOf("%last - %bx", "    let %last = min(%n, %bx * 4)\n"), Growth::kUnknown);
}

TEST(Growths, LeaveOutWhereThreadsDiffer) {
  EXPECT_EQ(GrowthOf("%bx * 4 - %first", "    let %first = max(%bx * 4 - %thread // 128, 0)\n", " thread(%thread)"), Growth::kUp);
}

TEST(Growths, AreNoneWhereTheVariableIsNot) {
  EXPECT_EQ(GrowthOf("%n"), Growth::kNone);
  EXPECT_EQ(GrowthOf("%by * 4"), Growth::kNone);
}

TEST(Growths, AreUnknownOfWhatRisesAndFalls) {
  EXPECT_EQ(GrowthOf("floormod(%bx, 3)"), Growth::kUnknown);
  EXPECT_EQ(GrowthOf("%bx * %n"), Growth::kUnknown) << "%n may be negative for all this knows";
  EXPECT_EQ(GrowthOf("%A[%bx]"), Growth::kUnknown);
}

}  // namespace
}  // namespace kiln::compiler
