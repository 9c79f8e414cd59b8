// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/manifest_parts.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace kiln {
namespace {

using Parts = std::vector<std::vector<std::uint32_t>>;

TEST(SplitManifest, WhatFitsIsOnePart) {
  EXPECT_EQ(SplitManifest({3, 3, 4}, 2, {.bytes = 10, .items = 6}), (Parts{{0, 1, 2}}));
  EXPECT_EQ(SplitManifest({}, 0), Parts(1)) << "an empty manifest is sent all the same";
}

TEST(SplitManifest, EachPartIsASampleOfTheWhole) {
  EXPECT_EQ(SplitManifest({5, 5, 5, 5, 5, 5}, 1, {.bytes = 15, .items = 100}), (Parts{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(SplitManifest({1, 1, 1, 1}, 3, {.bytes = 100, .items = 7}), (Parts{{0, 2}, {1, 3}})) << "twelve items, two requests a part";
}

TEST(SplitManifest, EveryRequestIsInOnePartWithinTheLimits) {
  const PartLimits limits{.bytes = 100, .items = 40};
  std::vector<std::size_t> bytes;
  for (std::size_t i = 0; i < 200; ++i) bytes.push_back(i * 37 % 61);
  bytes[17] = 5'000;
  std::vector<std::uint32_t> seen;
  for (const auto& part : SplitManifest(bytes, 4, limits)) {
    ASSERT_FALSE(part.empty());
    std::size_t sum = 0;
    for (const std::uint32_t index : part) sum += bytes[index];
    EXPECT_TRUE(sum <= limits.bytes || part.size() == 1) << sum;
    EXPECT_LE(part.size() * 4, limits.items);
    seen.insert(seen.end(), part.begin(), part.end());
  }
  std::ranges::sort(seen);
  ASSERT_EQ(seen.size(), bytes.size());
  for (std::uint32_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
}

TEST(ProgressOfParts, IsOneOverAllParts) {
  ProgressOfParts progress(6);
  progress.Begin(4);
  const EnsureProgress half = progress.Note({.total = 8, .known = 1, .compiled = 3, .failed = 0, .elapsed_seconds = 2, .remaining_seconds = 2.0});
  EXPECT_EQ(half.total, 12u);
  EXPECT_DOUBLE_EQ(half.remaining_seconds.value_or(-1), 2 + 2) << "two thirds take 4 s";
  progress.Note({.total = 8, .known = 1, .compiled = 6, .failed = 1, .elapsed_seconds = 4, .remaining_seconds = 0.0});
  progress.Begin(2);
  const EnsureProgress begun = progress.Note({.total = 4, .known = 1, .compiled = 0, .failed = 0, .elapsed_seconds = 1, .remaining_seconds = {}});
  EXPECT_EQ(begun.total, 12u);
  EXPECT_EQ(begun.known, 2u);
  EXPECT_EQ(begun.compiled, 6u);
  EXPECT_EQ(begun.failed, 1u);
  EXPECT_DOUBLE_EQ(begun.elapsed_seconds, 5);
  EXPECT_FALSE(begun.remaining_seconds);
  const EnsureProgress end = progress.Note({.total = 4, .known = 1, .compiled = 3, .failed = 0, .elapsed_seconds = 2, .remaining_seconds = 0.0});
  EXPECT_EQ(end.known + end.compiled + end.failed, end.total);
  EXPECT_DOUBLE_EQ(end.remaining_seconds.value_or(-1), 0);
}

}  // namespace
}  // namespace kiln
