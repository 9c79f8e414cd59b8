// SPDX-License-Identifier: Apache-2.0
#include "ir/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kiln::ir {
namespace {

// The accumulator of mma.m16n8k16: row = lane / 4 + 8h, column = 2 (lane % 4) + x.
const Layout kAccumulator({{{8, Place::kThread, 4}, {2, Place::kRegister, 2}}, {{2, Place::kRegister, 1}, {4, Place::kThread, 1}}});

TEST(Layout, PlacesOfAnMmaAccumulator) {
  EXPECT_EQ(kAccumulator.Threads(), 32);
  EXPECT_EQ(kAccumulator.Registers(), 4);
  EXPECT_EQ(kAccumulator.ThreadOf(Indices{9, 5}), 1 * 4 + 2);
  EXPECT_EQ(kAccumulator.RegisterOf(Indices{9, 5}), 2 + 1);
  EXPECT_TRUE(kAccumulator.IsInjective());
}

TEST(Layout, ReducingADimensionMakesReplicas) {
  const Layout rows = kAccumulator.WithoutDim(1);
  EXPECT_EQ(rows.ToString(), "[8t4 2r1] rep[4t1]");
  EXPECT_EQ(rows.Threads(), 32);
  EXPECT_EQ(rows.Registers(), 2);
  EXPECT_EQ(rows.ReplicaOf(7), 3);
}

TEST(Layout, IsWholeWhereNoDimensionHasThreads) {
  const std::vector<int64_t> shape{6, 4};
  const int swapped[] = {1, 0};
  EXPECT_TRUE(Layout::Replicated(shape, 32).IsWhole());
  EXPECT_TRUE(Layout::Replicated(shape, 32).Permuted(swapped).IsWhole());
  EXPECT_TRUE(Layout::Distributed(shape, 1, 2).IsWhole()) << "of one thread";
  EXPECT_FALSE(Layout::Distributed(shape, 2, 2).IsWhole());
  EXPECT_FALSE(kAccumulator.WithoutDim(1).IsWhole()) << "four threads hold copies, eight have other elements";
}

TEST(Layout, HalvesHaveRegistersOfTheirOwn) {
  const std::optional<Layout> rows = kAccumulator.Half(0);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->ToString(), "[8t4][2r1 4t1]");
  for (int64_t row : {0, 7})
    for (int64_t column : {0, 5}) {
      EXPECT_EQ(kAccumulator.ThreadOf(Indices{row, column}), kAccumulator.ThreadOf(Indices{row + 8, column}));
      EXPECT_EQ(rows->ThreadOf(Indices{row, column}), kAccumulator.ThreadOf(Indices{row, column}));
    }
  EXPECT_FALSE(kAccumulator.Half(1)) << "columns end with threads";
  EXPECT_FALSE(Layout({{{8, Place::kThread, 1}, {3, Place::kRegister, 1}}}).Half(0)) << "three registers";
}

Layout RandomLayout(std::mt19937& random, std::vector<int64_t>& shape) {
  shape.clear();
  const int rank = 1 + int(random() % 3);
  for (int d = 0; d < rank; ++d) shape.push_back(1 + int64_t(random() % 90));
  const int64_t vectors[] = {1, 2, 4, 8};
  const int64_t threads[] = {32, 64, 96, 128, 256};
  return Layout::Distributed(shape, threads[random() % 5], vectors[random() % 4]);
}

TEST(Layout, DistributedCoversEveryElementOnce) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> shape;
    const Layout layout = RandomLayout(random, shape);
    SCOPED_TRACE(layout.ToString());
    ASSERT_TRUE(layout.IsInjective());
    std::set<Indices> seen;
    for (int64_t t = 0; t < layout.Threads(); ++t) {
      if (layout.ReplicaOf(t) != 0) continue;
      const Indices base = layout.ThreadPart(t);
      for (int64_t r = 0; r < layout.Registers(); ++r) {
        Indices index = layout.RegisterPart(r);
        bool inside = true;
        for (size_t d = 0; d < index.size(); ++d) inside &= (index[d] += base[d]) < shape[d];
        EXPECT_EQ(layout.ThreadOf(index), t);
        EXPECT_EQ(layout.RegisterOf(index), r);
        if (inside) {
          EXPECT_TRUE(seen.insert(index).second);
        }
      }
    }
    int64_t elements = 1;
    for (int64_t n : shape) elements *= n;
    EXPECT_EQ(int64_t(seen.size()), elements);
  }
}

TEST(Layout, TextRoundTrips) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 100; ++round) {
    std::vector<int64_t> shape;
    const Layout layout = RandomLayout(random, shape);
    const std::optional<Layout> parsed = Layout::Parse(layout.ToString());
    ASSERT_TRUE(parsed) << layout.ToString();
    EXPECT_EQ(*parsed, layout);
  }
  const Layout shared = Layout::Strided(Indices{3, 128, 64}, Indices{8192, 64, 1}, {3, 4, 3});
  EXPECT_EQ(Layout::Parse(shared.ToString()), shared);
  EXPECT_FALSE(Layout::Parse("[8q4]"));
  EXPECT_FALSE(Layout::Parse("[8t4"));
  EXPECT_FALSE(Layout::Parse("[0t4]"));
}

TEST(Layout, EqualAfterSplittingADigit) {
  const Layout split({{{2, Place::kThread, 4}, {4, Place::kThread, 8}, {2, Place::kRegister, 2}},
                      {{2, Place::kRegister, 1}, {4, Place::kThread, 1}, {1, Place::kRegister, 4}}});
  EXPECT_EQ(split, kAccumulator);
}

TEST(Swizzle, KeepsEightRowsOfSixteenBytesApart) {
  const Swizzle swizzle{3, 4, 3};
  std::set<int64_t> banks;
  for (int64_t row = 0; row < 8; ++row) banks.insert(swizzle.Apply(row * 128 + 32) / 16 % 8);
  EXPECT_EQ(banks.size(), 8u);
  for (int64_t a = 0; a < 4096; ++a) EXPECT_EQ(swizzle.Apply(swizzle.Apply(a)), a);
}

}  // namespace
}  // namespace kiln::ir
