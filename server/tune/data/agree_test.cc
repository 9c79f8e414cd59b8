// SPDX-License-Identifier: Apache-2.0
#include "server/tune/data/agree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace kiln::server {
namespace {

template <class Value>
ReadBytes Of(const std::vector<Value>& values) {
  return [&values](std::uint64_t position, char* data, std::uint64_t bytes) {
    std::memcpy(data, reinterpret_cast<const char*>(values.data()) + position, bytes);
    return true;
  };
}

template <class Value>
std::optional<std::string> Compare(v1::DType dtype, const std::vector<Value>& ours, const std::vector<Value>& theirs) {
  return Disagreement(dtype, ours.size() * sizeof(Value), Of(ours), Of(theirs));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

TEST(AgreeTest, RoundingsAgreeAndErrorsDoNot) {
  EXPECT_FALSE(Compare<float>(v1::F32, {1.0f, -2.0f, 0.0f}, {1.0001f, -2.0f, 0.0001f}));
  const auto differs = Compare<float>(v1::F32, {1.0f, -2.0f, 0.0f}, {1.0f, -2.1f, 0.0f});
  ASSERT_TRUE(differs);
  EXPECT_EQ(*differs, "element 1 is -2, and -2.1 in the reference");
}

TEST(AgreeTest, ASmallValueMayBeOffByAPartOfTheOthers) {
  std::vector<float> theirs(1000, 100.0f), ours = theirs;
  theirs[7] = 0.01f;
  ours[7] = 0.05f;
  EXPECT_FALSE(Compare(v1::F32, ours, theirs)) << "sums that cancel have the error of what they sum";
  ours[7] = 1.0f;
  EXPECT_TRUE(Compare(v1::F32, ours, theirs));
}

TEST(AgreeTest, WhatMarksMaskedElementsExcusesNoOther) {
  for (const float mark : {-1e30f, std::numeric_limits<float>::lowest()}) {
    std::vector<float> theirs(1000, 1.0f);
    for (std::size_t i = 0; i < theirs.size(); i += 2) theirs[i] = mark;
    auto ours = theirs;
    EXPECT_FALSE(Compare(v1::F32, ours, theirs));
    ours[501] = 3.0f;
    EXPECT_EQ(Compare(v1::F32, ours, theirs), "element 501 is 3, and 1 in the reference");
  }
}

TEST(AgreeTest, ValuesThatSpreadLikeSumsKeepTheirCommonScale) {
  std::vector<double> theirs(1000);
  for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i] = i % 100 == 0 ? 1e-7 : i % 2 == 0 ? 1.0 : 300.0;
  std::vector<float> expected(theirs.begin(), theirs.end()), ours = expected;
  ours[100] = 0.05f;  // what cancels has the error of what is summed
  EXPECT_FALSE(Compare(v1::F32, ours, expected));
}

TEST(AgreeTest, ZerosAndNoNumbersSayLittle) {
  const auto of = [](const std::vector<float>& values) { return SaysLittle(v1::F32, values.size() * sizeof(float), Of(values)); };
  EXPECT_EQ(of({kNan, kInfinity, kNan}), "no element is a number");
  EXPECT_EQ(of({0.0f, -0.0f, kInfinity}), "every element that is a number is 0");
  EXPECT_FALSE(of({0.0f, 1e-30f}));
  EXPECT_FALSE(of({}));
  const std::vector<std::int32_t> zeros(3), one = {0, 0, 1};
  EXPECT_EQ(SaysLittle(v1::I32, 12, Of(zeros)), "every element is 0");
  EXPECT_FALSE(SaysLittle(v1::I32, 12, Of(one)));
}

TEST(AgreeTest, WhatIsNotFiniteMustBeTheSame) {
  EXPECT_FALSE(Compare<float>(v1::F32, {kNan, kInfinity, 1}, {kNan, kInfinity, 1}));
  EXPECT_TRUE(Compare<float>(v1::F32, {1, kInfinity}, {1, -kInfinity}));
  EXPECT_TRUE(Compare<float>(v1::F32, {1, kNan}, {1, 1}));
  EXPECT_TRUE(Compare<float>(v1::F32, {1, 1}, {1, kNan}));
  EXPECT_TRUE(Compare<float>(v1::F32, {1, 1e30f}, {1, kInfinity}));
}

TEST(AgreeTest, IntegersMustBeEqual) {
  EXPECT_FALSE(Compare<std::int32_t>(v1::I32, {1, 2, 3}, {1, 2, 3}));
  EXPECT_EQ(Compare<std::int32_t>(v1::I32, {1, 2, 3}, {1, 2, 4}), "byte 8 differs");
}

TEST(AgreeTest, SmallFloatsAreReadByTheirFormats) {
  using Bits = std::vector<std::uint16_t>;
  EXPECT_FALSE(Compare<std::uint16_t>(v1::BF16, {0x3f80}, {0x3f81})) << "1 and the next";
  EXPECT_TRUE(Compare<std::uint16_t>(v1::BF16, {0x3f80}, {0x3fc0})) << "1 and 1.5";
  EXPECT_FALSE(Compare<std::uint16_t>(v1::F16, {0x3c00}, {0x3c01}));
  EXPECT_TRUE(Compare<std::uint16_t>(v1::F16, {0x3c00}, {0x7c00})) << "infinity";
  EXPECT_EQ(Compare(v1::F16, Bits{0x3c00, 0x0001}, Bits{0x3c00, 0xbc00}), "element 1 is 5.96046e-08, and -1 in the reference");
  EXPECT_FALSE(Compare<std::uint8_t>(v1::F8E4M3, {0x38, 0x7f}, {0x39, 0x7f})) << "1 and 1.125, NaN twice";
  EXPECT_TRUE(Compare<std::uint8_t>(v1::F8E4M3, {0x38}, {0x48})) << "1 and 4";
  EXPECT_TRUE(Compare<std::uint8_t>(v1::F8E4M3FNUZ, {0x40, 0x80}, {0x40, 0x00})) << "the sign alone is no number";
  EXPECT_FALSE(Compare<std::uint8_t>(v1::F8E5M2, {0x3c, 0x7c}, {0x3d, 0x7c})) << "1 and 1.25, infinity twice";
}

TEST(AgreeTest, EveryPieceIsLookedAt) {
  std::vector<float> theirs(700'000, 1.0f), ours = theirs;
  EXPECT_FALSE(Compare(v1::F32, ours, theirs));
  ours.back() = 2.0f;
  EXPECT_EQ(Compare(v1::F32, ours, theirs), "element 699999 is 2, and 1 in the reference");
}

TEST(AgreeTest, WhatCannotBeReadDoesNotAgree) {
  const std::vector<float> values(4, 1.0f);
  const ReadBytes broken = [](std::uint64_t, char*, std::uint64_t) { return false; };
  EXPECT_TRUE(Disagreement(v1::F32, 16, Of(values), broken));
  EXPECT_TRUE(Disagreement(v1::I32, 16, broken, Of(values)));
}

}  // namespace
}  // namespace kiln::server
