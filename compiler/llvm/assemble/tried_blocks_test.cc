// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/assemble/tried_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln::llvm_ir {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kTwo[] =
    ".visible .entry one(\n)\n.reqntid 256\n.minnctapersm 1\n{\nret;\n}\n.visible .entry two(\n)\n.reqntid 128\n.minnctapersm 1\n{\nret;\n}\n";

TEST(TriedBlocks, AreNotedAndRead) {
  EXPECT_THAT(TriedBlocks(kTwo), IsEmpty());
  const std::string noted = WithNotes(kTwo, {{"two", 4}, {"three", 2}});
  EXPECT_THAT(noted, testing::HasSubstr(".reqntid 128\n.minnctapersm 1 // to try: 4\n{"));
  EXPECT_THAT(TriedBlocks(noted), ElementsAre(Pair("two", 4u)));
  EXPECT_EQ(WithNotes(kTwo, {}), kTwo);
}

TEST(TriedBlocks, TakeThePlaceOfTheNote) {
  const std::string noted = WithNotes(kTwo, {{"one", 2}, {"two", 4}});
  EXPECT_EQ(WithBlocks(noted, {}), noted);
  const std::string tried = WithBlocks(noted, {{"one", 2}});
  EXPECT_THAT(tried, testing::HasSubstr(".reqntid 256\n.minnctapersm 2\n{"));
  EXPECT_THAT(TriedBlocks(tried), ElementsAre(Pair("two", 4u)));
}

// A program's own text may look like a note.
TEST(TriedBlocks, AreInDirectivesAlone) {
  EXPECT_THAT(TriedBlocks(".entry one(\n)\n{\n// to try: 3\nmov.u32 %r1, 2; // to try: 3\n}\n"), IsEmpty());
  EXPECT_THAT(TriedBlocks(".entry one(\n)\n.minnctapersm 1 // to try: x\n{\n}\n"), IsEmpty());
}

}  // namespace
}  // namespace kiln::llvm_ir
