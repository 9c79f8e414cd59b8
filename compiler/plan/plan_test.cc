// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "compiler/plan/estimate.h"

namespace kiln::compiler {
namespace {

TEST(Boards, EachTargetHasItsOwn) {
  for (const target::Target& target : target::All()) {
    EXPECT_EQ(target::MachineOf(target).arch, target.arch);
    EXPECT_EQ(target::BoardOf(target).arch, target.arch);
    EXPECT_EQ(target::BoardOf(target, "no such board").name, target::BoardOf(target).name);
  }
}

}  // namespace
}  // namespace kiln::compiler
