// SPDX-License-Identifier: Apache-2.0
//
// Each op before the copies of a pipelined loop, before, between and behind its products. The numbers are small integers, so that results are
// equal to those of the serial loop, bit by bit.
#include <gtest/gtest.h>

#include "tests/emulator/ops/program.h"
#include "tests/emulator/ops/run.h"

namespace kiln::emulator::testing {
namespace {

Tensors ResultOf(const std::string& text, std::string_view target, std::string_view pass = {}, std::string_view made = {},
                 const v1::CompileOptions& options = {}) {
  ir::Module module = Parsed(text);
  const Tensors numbers = SmallNumbers(module, 1);
  Runner runner(std::move(module), target, {}, options);
  EXPECT_TRUE(pass.empty() || runner.After(pass).contains(made)) << made;
  return runner.Run(numbers);
}

class PlaceTest : public ::testing::TestWithParam<LoopRow> {};
INSTANTIATE_TEST_SUITE_P(Ops, PlaceTest, ::testing::ValuesIn(kLoopRows), NameOf<LoopRow>);

TEST_P(PlaceTest, GivesWhatTheSerialLoopGives) {
  for (const Position position : {Position::kBeforeCopies, Position::kBeforeProducts, Position::kBetween, Position::kBehind}) {
    const auto text = [&](std::string_view loop) { return LoopTextOf(GetParam().statements, position, loop); };
    const std::vector<std::string_view> targets = TargetsOf(GetParam().op, kOneBlock);
    const Tensors expected = ResultOf(text("serial %k in 6"), targets.front());
    for (const std::string_view target : targets) {
      EXPECT_EQ(ResultOf(text("pipelined %k in 6 stages 3"), target), expected) << target << ", position " << int(position);
    }
  }
}

class MadePlaceTest : public ::testing::TestWithParam<MadeRow> {};
INSTANTIATE_TEST_SUITE_P(Ops, MadePlaceTest, ::testing::ValuesIn(kMadeRows), NameOf<MadeRow>);

TEST_P(MadePlaceTest, GivesWhatTheSerialLoopGives) {
  const MadeRow& row = GetParam();
  const Tensors made = ResultOf(MadeTextOf("pipelined %k in 32 stages 3"), row.target, row.pass, row.op, OptionsOf(row));
  EXPECT_EQ(made, ResultOf(MadeTextOf("serial %k in 32"), "emu:sm_80"));
}

}  // namespace
}  // namespace kiln::emulator::testing
