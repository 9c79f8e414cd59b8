// SPDX-License-Identifier: Apache-2.0
#include "ir/grammar/grammar.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

TEST(Grammar, ASeedGivesOneModule) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Module once = grammar::MakeModule(seed, {}), again = grammar::MakeModule(seed, {});
    ASSERT_EQ(Print(once), Print(again));
    ASSERT_NE(Print(once), Print(grammar::MakeModule(seed + 1, {})));
  }
}

// Whoever adds an op has to write Weight and Write, or nothing links; this is whether it comes up.
TEST(Grammar, EverythingComesUp) {
  std::set<size_t> ops;
  std::set<LoopKind> loops;
  std::set<ExprOp> exprs;
  std::set<DType> types;
  std::set<Space> spaces;
  std::set<size_t> ranks;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Module module = grammar::MakeModule(seed, {.decisions = true});
    for (uint32_t i = 0; i < module.exprs.size(); ++i) exprs.insert(module.exprs[ExprId(i)].op);
    for (const Buffer& buffer : module.buffers) types.insert(buffer.dtype), spaces.insert(buffer.space), ranks.insert(buffer.shape.size());
    for (const Kernel& kernel : module.kernels) {
      Walk(kernel.body, [&](const Stmt& stmt) {
        ops.insert(stmt.op.index());
        if (const auto* loop = std::get_if<For>(&stmt.op)) loops.insert(loop->kind);
      });
    }
  }
  EXPECT_EQ(ops.size(), std::variant_size_v<Op>);
  EXPECT_EQ(loops.size(), size_t(LoopKind::kPersistent));
  EXPECT_EQ(spaces.size(), size_t(Space::kBarrier));
  EXPECT_TRUE(ranks.contains(0) && ranks.contains(4));
#define KILN_EXPR(number, id, name, args, since, rule) EXPECT_TRUE(exprs.contains(ExprOp::id)) << name;
#include "ir/expr/exprs.def"
#define KILN_DTYPE(number, id, name, bits, kind) EXPECT_TRUE(types.contains(DType::id)) << name;
#include "ir/dtypes.def"
}

TEST(Grammar, MostModulesAreValid) {
  int valid = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Diagnostics diagnostics;
    const Module module = grammar::MakeModule(seed, {.simplified = false});
    const auto read = DecodeModule(EncodeBytes(module), diagnostics);
    ASSERT_TRUE(read) << seed << ": " << diagnostics.all()[0].message << "\n" << Print(module);
    valid += Verify(*read, diagnostics).has_value();
  }
  EXPECT_GT(valid, 800);
}

}  // namespace
}  // namespace kiln::ir
