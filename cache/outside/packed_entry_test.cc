// SPDX-License-Identifier: Apache-2.0
#include "cache/outside/packed_entry.h"

#include <gtest/gtest.h>

#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::MakeEntry;
using testing::NumberedEntry;

constexpr std::uint64_t kMost = std::uint64_t{1} << 20;

ErrorCode WhyNot(const Digest& key, std::string_view packed, std::uint64_t most = kMost) {
  const auto entry = Unpack(key, packed, most);
  EXPECT_FALSE(entry);
  return entry ? ErrorCode::kClosed : entry.error().code;
}

TEST(PackedEntryTest, ComesBackAsItWas) {
  for (const std::size_t size : {0, 1, 1000, 100'000}) {
    const Entry entry = MakeEntry(KeyOf(1), testing::RandomBytes(size, 1));
    const std::string packed = Pack(entry);
    EXPECT_LE(packed.size(), MostPacked(entry.sealed().size()));
    const auto back = Unpack(KeyOf(1), packed, kMost);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(back->sealed(), entry.sealed());
  }
  const Entry repetitive = MakeEntry(KeyOf(1), std::string(100'000, 'x'));
  EXPECT_LT(Pack(repetitive).size(), 2'000u);
}

TEST(PackedEntryTest, EveryByteCounts) {
  const Entry entry = NumberedEntry(1, 200);
  const std::string packed = Pack(entry);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    std::string damaged = packed;
    damaged[i] ^= 1;
    const auto back = Unpack(entry.key(), damaged, kMost);  // some bits of a frame say nothing of what is in it
    EXPECT_TRUE(back ? back->sealed() == entry.sealed() : back.error().code == ErrorCode::kCorrupt) << i;
    EXPECT_TRUE(!back || i >= entry.head().size()) << i;
    EXPECT_EQ(WhyNot(entry.key(), std::string_view(packed).substr(0, i)), ErrorCode::kCorrupt) << i;
  }
  EXPECT_EQ(WhyNot(entry.key(), packed + "x"), ErrorCode::kCorrupt);
  EXPECT_EQ(WhyNot(KeyOf(2), packed), ErrorCode::kCorrupt) << "another key's";
  EXPECT_EQ(WhyNot(entry.key(), "<html>"), ErrorCode::kCorrupt);
}

TEST(PackedEntryTest, ABodyIsWhatItsHeadSays) {
  const Entry entry = NumberedEntry(1, 200);
  const std::string head(entry.head());
  EXPECT_EQ(WhyNot(entry.key(), head + Compress(NumberedEntry(2, 200).body())), ErrorCode::kCorrupt);
  EXPECT_EQ(WhyNot(entry.key(), head + Compress("")), ErrorCode::kCorrupt);
  EXPECT_EQ(WhyNot(entry.key(), head + Compress(std::string(std::size_t{64} << 20, 'x'))), ErrorCode::kCorrupt) << "it would swell";
}

TEST(PackedEntryTest, WhatIsLargeIsNotCorrupt) {
  const Entry entry = NumberedEntry(1, 1'000);
  const std::uint64_t size = entry.sealed().size();
  EXPECT_TRUE(Unpack(entry.key(), Pack(entry), size));
  EXPECT_EQ(WhyNot(entry.key(), Pack(entry), size - 1), ErrorCode::kInvalid) << "another host may put it";
}

}  // namespace
}  // namespace kiln::cache
