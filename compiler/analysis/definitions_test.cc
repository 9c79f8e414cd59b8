// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/definitions.h"

#include <gtest/gtest.h>

#include <string>

#include "ir/text/parse.h"

namespace kiln::compiler {
namespace {

// The module's first kernel runs `statements` on the fragments c (4 × 8) and d (8 × 8); returns the number of the one that zeroes c, or −1.
ptrdiff_t ZeroingOfC(const std::string& statements) {
  ir::Diagnostics diagnostics;
  const auto module = ir::Parse(
      "kiln 1\nfunc @f() {\n  kernel @main grid(1) threads 32 blocks(%bx) {\n    %c = alloc fragment i32[4, 8]\n    %d = alloc fragment i32[8, 8]\n" +
          statements + "  }\n}\n",
      diagnostics);
  EXPECT_TRUE(module) << (diagnostics.all().empty() ? "" : diagnostics.all().front().message);
  if (!module) return -1;
  const ir::Block& body = module->kernels[0].body;
  const ir::Stmt* zeroing = ZeroedBy(*module, body, std::get<ir::Alloc>(body[0].op).buffer);
  return zeroing == nullptr ? -1 : zeroing - body.data() - 2;
}

TEST(ZeroedBy, IsTheLastStatementThatTouchesTheBuffer) {
  EXPECT_EQ(ZeroingOfC("fill %c[0, 0; 4, 8] = 0\nfill %d[0, 0; 8, 8] = 1\n"), 0);
  EXPECT_EQ(ZeroingOfC("fill %c[0, 0; 4, 8] = 0\nfill %c[0, 0; 4, 8] = 1\n"), -1);
  EXPECT_EQ(ZeroingOfC("fill %c[0, 0; 4, 8] = 1\nfill %c[0, 0; 4, 8] = 0\n"), 1);
  EXPECT_EQ(ZeroingOfC("fill %c[0, 0; 2, 8] = 0\n"), -1);
}

TEST(ZeroedBy, IsNoStatementThatOnlyReadsTheBuffer) { EXPECT_EQ(ZeroingOfC("fill %c[0, 0; 4, 8] = 1\nfill %d[%c[0, 0], 0; 4, 8] = 0\n"), -1); }

TEST(ZeroedBy, IsNoStatementThatALoopMayBeLeftBehind) {
  for (const std::string exit : {"break", "continue"}) {
    ir::Diagnostics diagnostics;
    const auto module = ir::Parse(
        "kiln 1\nfunc @f() {\n  kernel @main grid(1) threads 32 blocks(%bx) {\n    %c = alloc fragment i32[4, 8]\n    for serial %k in 4 {\n"
        "      fill %c[0, 0; 4, 8] = 0\n      if %k < 2 {\n        " +
            exit + "\n      }\n      for serial %l in 2 {\n        if %l < 1 {\n          continue\n        }\n      }\n    }\n  }\n}\n",
        diagnostics);
    ASSERT_TRUE(module) << diagnostics.all().front().message;
    const ir::Block& body = module->kernels[0].body;
    const ir::BufferId c = std::get<ir::Alloc>(body[0].op).buffer;
    const auto& loop = std::get<ir::For>(body[1].op);
    EXPECT_EQ(ZeroedBy(*module, loop.body, c), nullptr) << exit;
    EXPECT_EQ(ZeroedBy(*module, std::span(loop.body).first(1), c), &loop.body[0]);
  }
}

}  // namespace
}  // namespace kiln::compiler
