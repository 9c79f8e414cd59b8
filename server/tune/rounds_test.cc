// SPDX-License-Identifier: Apache-2.0
#include "server/tune/rounds.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

namespace kiln::server {
namespace {

using State = Rounds::State;

// Measures what the rounds ask for until they ask for nothing; candidate i takes times[i], give or take `noise`. How often each was asked for.
std::map<std::size_t, unsigned> Finish(Rounds& rounds, const std::vector<double>& times, double noise = 0) {
  std::map<std::size_t, unsigned> asked;
  bool up = false;
  while (const auto plan = rounds.Next()) {
    std::vector<double> samples;
    for (unsigned i = 0; i < plan->samples; ++i) samples.push_back(times[plan->candidate] + ((up = !up) ? noise : -noise));
    rounds.Add(plan->candidate, samples);
    asked[plan->candidate] += plan->samples;
  }
  return asked;
}

void ArriveAll(Rounds& rounds, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) rounds.Arrive(i);
  rounds.AllArrived();
}

TEST(RoundsTest, LosersAreMeasuredLessThanWinners) {
  Rounds rounds(4);
  ArriveAll(rounds, 4);
  auto asked = Finish(rounds, {100, 10.2, 10, 14});
  EXPECT_TRUE(rounds.done());
  EXPECT_EQ(rounds.Best(), 2u);
  EXPECT_EQ(asked[0], asked[3]) << "both leave after the first round";
  EXPECT_LT(asked[0], asked[1]);
  EXPECT_LE(asked[1], asked[2]);
  EXPECT_EQ(rounds.state(0), State::kDropped);
}

TEST(RoundsTest, WhatNoiseExplainsStays) {
  Rounds calm(2), noisy(2);
  ArriveAll(calm, 2);
  ArriveAll(noisy, 2);
  Finish(calm, {10, 11.5});
  Finish(noisy, {10, 11.5}, 1.0);
  EXPECT_EQ(calm.state(1), State::kDropped);
  EXPECT_EQ(noisy.state(1), State::kIn);
}

TEST(RoundsTest, ThePassesOfARoundAlternate) {
  Rounds rounds(2);
  ArriveAll(rounds, 2);
  std::vector<std::size_t> order;
  while (const auto plan = rounds.Next()) {
    order.push_back(plan->candidate);
    rounds.Add(plan->candidate, std::array{10.0});
  }
  ASSERT_GT(order.size(), 10u);
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i % 2);
}

TEST(RoundsTest, TheFirstRoundWaitsForThoseThatAreCompiled) {
  Rounds rounds(2);
  EXPECT_FALSE(rounds.Next());
  rounds.Arrive(1);
  ASSERT_TRUE(rounds.Next());
  rounds.Add(1, std::array{5.0});
  EXPECT_FALSE(rounds.Next()) << "the other may be faster";
  EXPECT_FALSE(rounds.done());
  rounds.Arrive(0);
  rounds.AllArrived();
  Finish(rounds, {4, 5});
  EXPECT_EQ(rounds.Best(), 0u);
}

TEST(RoundsTest, WhoFailsIsNeverChosenAndTheNextIsEvenIfItWasDropped) {
  Rounds rounds(3);
  ArriveAll(rounds, 3);
  Finish(rounds, {10, 20, 30});
  EXPECT_EQ(rounds.Best(), 0u);
  rounds.Fail(0);
  EXPECT_EQ(rounds.Best(), 1u);
  rounds.Fail(1);
  rounds.Fail(2);
  EXPECT_FALSE(rounds.Best());
}

TEST(RoundsTest, OfAThousandOnlyAFewComeToTheSecondRound) {
  constexpr std::size_t kMany = 1000;
  Rounds rounds(kMany);
  ArriveAll(rounds, kMany);
  std::vector<double> times(kMany, 10.0);
  times[777] = 9.9;
  auto asked = Finish(rounds, times);
  EXPECT_EQ(rounds.Best(), 777u);
  std::size_t often = 0;
  for (const auto& [candidate, samples] : asked) often += samples > 3 ? 1 : 0;
  EXPECT_EQ(often, 64u);
}

TEST(RoundsTest, MediansAndNoiseAreOfAllSamples) {
  Rounds rounds(1);
  rounds.Arrive(0);
  rounds.Add(0, std::array{1.0, 9.0});
  rounds.Add(0, std::array{2.0, 3.0});
  EXPECT_EQ(rounds.Median(0), 2.5);
  EXPECT_EQ(rounds.Noise(0), 1.0);
}

TEST(RoundsTest, TheFirstRoundWaitsForWhatIsLent) {
  Rounds rounds(3);
  ArriveAll(rounds, 3);
  const auto lent = rounds.Lend();
  const auto failed = rounds.Lend();
  ASSERT_TRUE(lent && failed);
  EXPECT_EQ(rounds.Next()->candidate, 2u);
  rounds.Add(2, std::array{9.0, 9.0, 9.0});
  EXPECT_FALSE(rounds.Next());
  EXPECT_FALSE(rounds.done());
  rounds.Add(0, std::array{8.0, 8.0, 8.0}, true);
  rounds.GiveBack(0, true);
  rounds.GiveBack(1, false);
  EXPECT_EQ(rounds.Next()->candidate, 1u) << "it is measured here";
  rounds.Add(1, std::array{10.0, 10.0, 10.0});
  EXPECT_EQ(rounds.Next()->candidate, 0u) << "the second round";
  EXPECT_EQ(rounds.round(), 1u);
  EXPECT_FALSE(rounds.Lend()) << "only of the first";
  EXPECT_TRUE(rounds.borrowed(0));
  rounds.Add(0, std::array{7.0, 7.0, 7.0});
  EXPECT_EQ(rounds.Median(0), 7.0) << "what was measured elsewhere has given way";
}

TEST(RoundsTest, WhoIsLeftAloneAndWasMeasuredElsewhereIsMeasuredAgain) {
  Rounds rounds(2);
  ArriveAll(rounds, 2);
  const auto lent = rounds.Lend();
  ASSERT_TRUE(lent);
  EXPECT_EQ(rounds.Next()->candidate, 1u);
  rounds.Add(1, std::array{100.0, 100.0, 100.0});
  rounds.Add(0, std::array{8.0, 8.0, 8.0}, true);
  rounds.GiveBack(0, true);
  EXPECT_EQ(rounds.Next()->candidate, 0u);
  EXPECT_EQ(rounds.state(1), State::kDropped);
  rounds.Add(0, std::array{7.0, 7.0, 7.0});
  Finish(rounds, {7, 100});
  EXPECT_TRUE(rounds.done());
  EXPECT_FALSE(rounds.borrowed(0));
}

TEST(RoundsTest, WithNobodyLeftTheRoundsEnd) {
  Rounds rounds(1);
  rounds.Fail(0);
  rounds.AllArrived();
  EXPECT_FALSE(rounds.Next());
  EXPECT_TRUE(rounds.done());
}

}  // namespace
}  // namespace kiln::server
