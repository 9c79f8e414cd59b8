// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_tier.h"

#include <gtest/gtest.h>

#include <thread>

#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::NumberedEntry;

TEST(MemoryTier, KeepsAndReplaces) {
  MemoryTier tier({});
  EXPECT_FALSE(tier.Get(KeyOf(1))->has_value());
  const Entry entry = NumberedEntry(1);
  ASSERT_TRUE(PutAndWait(tier, entry));
  const auto found = tier.Get(KeyOf(1));
  ASSERT_TRUE(*found);
  EXPECT_EQ((*found)->sealed().data(), entry.sealed().data()) << "a hit copies no bytes";
  const Entry other = testing::MakeEntry(KeyOf(1), "other");
  ASSERT_TRUE(PutAndWait(tier, other));
  EXPECT_EQ((**tier.Get(KeyOf(1))).digest(), other.digest());
  EXPECT_EQ(tier.Stats().entries, 1u);
  EXPECT_EQ(tier.Erase(KeyOf(1)), true);
  EXPECT_EQ(tier.Erase(KeyOf(1)), false);
  EXPECT_EQ(tier.Stats().entries, 0u);
  EXPECT_EQ(tier.Stats().bytes, 0u);
}

TEST(MemoryTier, EvictsTheLeastRecentlyUsed) {
  MemoryTier tier({.capacity = 5 * 2000, .shards = 1});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(PutAndWait(tier, NumberedEntry(i)));
  ASSERT_TRUE(tier.Get(KeyOf(0))->has_value());
  for (int i = 4; i < 8; ++i) ASSERT_TRUE(PutAndWait(tier, NumberedEntry(i)));
  const TierStats stats = tier.Stats();
  EXPECT_LE(stats.bytes, stats.capacity);
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_FALSE(tier.Get(KeyOf(1))->has_value()) << "unused since it was put";
  EXPECT_TRUE(tier.Get(KeyOf(7))->has_value());
}

TEST(MemoryTier, RefusesWhatCannotFit) {
  MemoryTier tier({.capacity = 16 * 1000, .shards = 16});
  const auto outcome = PutAndWait(tier, NumberedEntry(1, 2000));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kInvalid);
}

TEST(MemoryTier, StaysWithinItsBudgetUnderThreads) {
  MemoryTier tier({.capacity = 1 << 20, .shards = 4});
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&tier, t] {
      for (int i = 0; i < 500; ++i) {
        tier.Put(NumberedEntry((t * 131 + i) % 700, 3000));
        const int wanted = (t * 17 + i * 3) % 700;
        const auto found = tier.Get(KeyOf(wanted));
        if (*found) {
          ASSERT_EQ((*found)->key(), KeyOf(wanted));
        }
        if (i % 50 == 0) (void)tier.Erase(KeyOf(i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const TierStats stats = tier.Stats();
  EXPECT_LE(stats.bytes, stats.capacity);
  EXPECT_EQ(stats.puts, 4000u);
  EXPECT_EQ(stats.hits + stats.misses, 4000u);
}

}  // namespace
}  // namespace kiln::cache
