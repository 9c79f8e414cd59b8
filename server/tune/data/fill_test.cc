// SPDX-License-Identifier: Apache-2.0
#include "server/tune/data/fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

namespace kiln::server {
namespace {

v1::TuneArgument Recipe(v1::DType dtype, std::uint64_t bytes, v1::TuneFill fill, std::int64_t low = 0, std::int64_t high = 0) {
  v1::TuneArgument argument;
  argument.mutable_tensor()->set_dtype(dtype);
  argument.mutable_tensor()->set_bytes(bytes);
  argument.set_fill(fill);
  argument.set_low(low);
  argument.set_high(high);
  return argument;
}

template <class Value>
std::vector<Value> Made(const v1::TuneArgument& argument, std::uint64_t seed = 0) {
  std::vector<Value> values(argument.tensor().bytes() / sizeof(Value));
  EXPECT_TRUE(Fill(argument, seed, [&](std::uint64_t position, std::string_view data) {
    std::memcpy(reinterpret_cast<char*>(values.data()) + position, data.data(), data.size());
    return true;
  }));
  return values;
}

TEST(FillTest, RandomFloatsAreSmallAndOfManyValues) {
  const auto values = Made<float>(Recipe(v1::F32, 4 << 20, v1::TUNE_FILL_RANDOM));
  EXPECT_EQ(std::set<float>(values.begin(), values.end()).size(), 64u);
  EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value) && std::abs(value) < 2 && value != 0; }));
  double sum = 0;
  for (const float value : values) sum += value;
  EXPECT_LT(std::abs(sum / static_cast<double>(values.size())), 0.01);
}

TEST(FillTest, TheSameSeedGivesTheSameDataAndAnotherOthers) {
  const auto recipe = Recipe(v1::BF16, 1000, v1::TUNE_FILL_RANDOM);
  EXPECT_EQ(Made<std::uint16_t>(recipe, 1), Made<std::uint16_t>(recipe, 1));
  EXPECT_NE(Made<std::uint16_t>(recipe, 1), Made<std::uint16_t>(recipe, 2));
}

TEST(FillTest, ARangeHasAllItsIntegersAndNoOther) {
  const auto values = Made<std::int64_t>(Recipe(v1::I64, 80'000, v1::TUNE_FILL_RANGE, -3, 4));
  EXPECT_EQ(std::set<std::int64_t>(values.begin(), values.end()), (std::set<std::int64_t>{-3, -2, -1, 0, 1, 2, 3}));
  const auto bytes = Made<std::int8_t>(Recipe(v1::I8, 10'000, v1::TUNE_FILL_RANGE, -128, 128));
  EXPECT_EQ(std::set<std::int8_t>(bytes.begin(), bytes.end()).size(), 256u);
}

TEST(FillTest, ZerosAreWhatMemoryIsAtFirst) {
  bool written = false;
  EXPECT_TRUE(Fill(Recipe(v1::F32, 64, v1::TUNE_FILL_ZEROS), 0, [&](auto, auto) { return written = true; }));
  EXPECT_FALSE(written);
}

TEST(FillTest, TypesBelowAByteGetAnyBits) {
  const auto values = Made<std::uint8_t>(Recipe(v1::I4, 10'000, v1::TUNE_FILL_RANDOM));
  EXPECT_EQ(std::set<std::uint8_t>(values.begin(), values.end()).size(), 256u);
}

TEST(FillTest, EightBitFloatsAreFinite) {
  for (const v1::DType dtype : {v1::F8E4M3, v1::F8E5M2}) {
    for (const std::uint8_t value : Made<std::uint8_t>(Recipe(dtype, 4096, v1::TUNE_FILL_RANDOM))) {
      const unsigned exponent = dtype == v1::F8E4M3 ? (value & 0x7f) >> 3 : (value & 0x7f) >> 2;
      EXPECT_LT(exponent, dtype == v1::F8E4M3 ? 15u : 31u) << int{value};
      EXPECT_GT(exponent, 0u) << int{value};
    }
  }
}

TEST(FillTest, RecipesThatCannotBeAreRefused) {
  EXPECT_FALSE(ProblemOf(Recipe(v1::I32, 4, v1::TUNE_FILL_RANGE, 0, 1)));
  EXPECT_EQ(ProblemOf(Recipe(v1::I32, 4, v1::TUNE_FILL_RANGE, 3, 3)), "the range of integers from 3 to below 3 is empty");
  EXPECT_TRUE(ProblemOf(Recipe(v1::F32, 4, v1::TUNE_FILL_RANGE, 0, 3)));
  EXPECT_TRUE(ProblemOf(Recipe(v1::I8, 4, v1::TUNE_FILL_RANGE, 0, 300)));
  EXPECT_TRUE(ProblemOf(Recipe(v1::U8, 4, v1::TUNE_FILL_RANGE, -1, 3)));
  EXPECT_TRUE(ProblemOf(Recipe(v1::DTYPE_UNSPECIFIED, 4, v1::TUNE_FILL_RANDOM)));
  v1::TuneArgument number;
  number.set_integer(3);
  EXPECT_FALSE(ProblemOf(number));
  number.set_fill(v1::TUNE_FILL_RANDOM);
  EXPECT_TRUE(ProblemOf(number));
}

TEST(FillTest, MemoryThatTakesNothingEndsIt) {
  EXPECT_FALSE(Fill(Recipe(v1::F32, 64, v1::TUNE_FILL_RANDOM), 0, [](auto, auto) { return false; }));
}

}  // namespace
}  // namespace kiln::server
