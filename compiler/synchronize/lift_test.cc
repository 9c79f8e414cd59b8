// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/lift.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ir/diagnostic.h"
#include "ir/op.h"
#include "ir/text/parse.h"

namespace kiln::compiler {
namespace {

constexpr int kLoops = 64;

// Loops in a row, each with a statement that needs a barrier.
class LiftTest : public testing::Test {
 protected:
  LiftTest() {
    std::string text = "kiln 1\nfunc @f(%A: global f32[64]) outputs(0) {\n  kernel @k grid(1) threads 32 blocks(%b) {\n";
    for (int i = 0; i < kLoops; ++i) text += fmt::format("    for serial %i{} in 9 {{\n      store %A[%i{}] = 1.0\n    }}\n", i, i);
    ir::Diagnostics diagnostics;
    module_ = *ir::Parse(text + "  }\n}\n", diagnostics);
    visited_.Find(Body());
    for (const ir::Stmt& loop : Body()) needs_[Inner(loop)] = {Need::kBarrier};
  }

  const ir::Block& Body() const { return module_.kernels[0].body; }
  static const ir::Stmt* Inner(const ir::Stmt& loop) { return &std::get<ir::For>(loop.op).body[0]; }

  // Whether each loop has what it needs, in front of it or inside.
  bool AllHave() const {
    return std::ranges::all_of(Body(), [&](const ir::Stmt& loop) { return needs_.contains(&loop) || needs_.contains(Inner(loop)); });
  }

  // How often it asked.
  int Run(const std::function<bool()>& holds) {
    int asked = 0;
    Lift lift(needs_, causes_, visited_, [&] { return ++asked, holds(); });
    lift.Run(Body());
    lift.DropCovered();
    return asked;
  }

  ir::Module module_;
  Visited visited_;
  Lift::Needs needs_;
  Lift::Causes causes_;
};

TEST_F(LiftTest, TriesAllAtOnce) {
  EXPECT_EQ(Run([&] { return AllHave(); }), 2 * kLoops) << "once to move all, and again for each whether the others cover it";
  for (const ir::Stmt& loop : Body()) EXPECT_TRUE(needs_.contains(&loop) && !needs_.contains(Inner(loop)));
}

TEST_F(LiftTest, DropsWhatTheFirstCovers) {
  EXPECT_LE(Run([&] { return needs_.contains(&Body()[0]) || needs_.size() == kLoops; }), 2 * 6 + 2) << "halves of 64";
  EXPECT_EQ(needs_.size(), 1);
  EXPECT_TRUE(needs_.contains(&Body()[0]));
}

TEST_F(LiftTest, LeavesTheOneThatHasToStay) {
  const ir::Stmt& stays = Body()[kLoops / 3];
  Run([&] { return needs_.contains(Inner(stays)) && AllHave(); });
  for (const ir::Stmt& loop : Body()) EXPECT_EQ(needs_.contains(&loop), &loop != &stays);
  EXPECT_TRUE(needs_.contains(Inner(stays)));
}

TEST_F(LiftTest, LeavesWhatTheLoopCauses) {
  const ir::Stmt& own = Body()[3];
  causes_[Inner(own)] = {Inner(own)};
  causes_[Inner(Body()[4])] = {Inner(own)};
  Run([&] { return AllHave(); });
  EXPECT_TRUE(needs_.contains(Inner(own)) && !needs_.contains(Inner(Body()[4])));
}

TEST_F(LiftTest, PutsEveryNeedBack) {
  const Lift::Needs before = needs_;
  EXPECT_EQ(Run([] { return false; }), 2 * kLoops - 1);
  EXPECT_EQ(needs_.size(), before.size());
  for (const auto& [stmt, need] : before) EXPECT_TRUE(needs_.at(stmt).Covers(need) && need.Covers(needs_.at(stmt)));
}

}  // namespace
}  // namespace kiln::compiler
