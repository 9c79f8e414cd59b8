// SPDX-License-Identifier: Apache-2.0
#include "server/queue/work_estimate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace kiln::server {
namespace {

WorkEstimate::Clock::time_point At(double ms) {
  using Clock = WorkEstimate::Clock;
  return Clock::time_point{} + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}

struct Part {
  double size;
  double ms;
};

struct Told {
  double estimate;
  double actual;
  double error() const { return std::abs(estimate - actual) / actual; }
};

// The parts in this order, each by the worker who is free first; what is told when a tenth of them is done.
Told AtATenth(const std::vector<Part>& parts, unsigned workers) {
  WorkEstimate estimate(workers);
  for (const Part& part : parts) estimate.Expect(part.size);
  std::vector<double> free(workers, 0.0), ends;
  for (const Part& part : parts) {
    double& worker = *std::ranges::min_element(free);
    worker += part.ms;
    ends.push_back(worker);
  }
  std::vector<WorkEstimate::Part> order(parts.size());
  std::iota(order.begin(), order.end(), WorkEstimate::Part{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return ends[i]; });
  const std::size_t tenth = (parts.size() + 9) / 10;
  for (std::size_t i = 0; i < tenth; ++i) estimate.Done(order[i], parts[order[i]].ms, At(ends[order[i]]));
  const double now = ends[order[tenth - 1]];
  return {estimate.RemainingSeconds(At(now)).value_or(0), (std::ranges::max(ends) - now) / 1000};
}

class WorkEstimateTest : public ::testing::Test {
 protected:
  // Of 400 works of 400 parts, how many are told wrong by more than a quarter.
  int Wrong(const std::function<Part()>& part) {
    int wrong = 0;
    for (int work = 0; work < 400; ++work) {
      std::vector<Part> parts(400);
      for (Part& p : parts) p = part();
      wrong += AtATenth(parts, 4).error() > 0.25;
    }
    return wrong;
  }
  double Uniform(double low, double high) { return std::uniform_real_distribution(low, high)(random_); }

  std::mt19937 random_{std::random_device{}()};
};

TEST_F(WorkEstimateTest, PartsThatTakeAsLongAsTheyAreLarge) {
  EXPECT_LT(Wrong([&] {
              const double copies = random_() % 3 == 0 ? 1 : 1 + random_() % 8;
              return Part{1000 + 300 * copies, (5 + 10 * copies) * Uniform(0.8, 1.2)};
            }),
            4);
}

// When a tenth is done, the workers have the first large ones in hand: whether one is done is chance.
TEST_F(WorkEstimateTest, FewThatAreLargeAndManyThatAreSmall) {
  EXPECT_LT(Wrong([&] {
              const bool large = random_() % 10 == 0;
              return Part{large ? 20'000.0 : 1000.0, (large ? 400 : 20) * Uniform(0.8, 1.2)};
            }),
            60);
}

TEST_F(WorkEstimateTest, SizesThatSayNothing) {
  EXPECT_LT(Wrong([&] { return Part{Uniform(1000, 20'000), Uniform(10, 50)}; }), 4);
}

// The smaller, the longer: what is left is expected to be as what is done.
TEST_F(WorkEstimateTest, SizesThatMislead) {
  EXPECT_LT(Wrong([&] {
              const double size = Uniform(1000, 10'000);
              return Part{size, 60 - size / 250};
            }),
            4);
}

// Where the line of what is done would come to less than nothing.
TEST_F(WorkEstimateTest, SmallOnesAtTheEnd) {
  WorkEstimate estimate(1);
  for (int i = 0; i < 10; ++i) estimate.Expect(100 + i);
  for (int i = 0; i < 10; ++i) estimate.Expect(1);
  double now = 0;
  for (int i = 0; i < 10; ++i) estimate.Done(i, 10 + 10 * i, At(now += 10 + 10 * i));
  const auto remaining = estimate.RemainingSeconds(At(now));
  ASSERT_TRUE(remaining.has_value());
  EXPECT_GT(*remaining, 0);
  EXPECT_LT(*remaining, 0.05);
}

TEST_F(WorkEstimateTest, TellsNothingFromNothing) {
  WorkEstimate estimate(2);
  EXPECT_EQ(estimate.RemainingSeconds(At(0)), 0);
  for (int i = 0; i < 40; ++i) estimate.Expect(10);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(estimate.RemainingSeconds(At(100)).has_value());
    estimate.Done(i, 100, At(100));
  }
  estimate.Done(3, 100, At(100));  // a tenth: too few that one could tell how fast they come
  EXPECT_NEAR(estimate.RemainingSeconds(At(100)).value_or(0), 0.1 * (36 - 1) / 2, 1e-9);
}

// Every second was there already, or every second fails: both take as much of what is left as of what is done.
TEST_F(WorkEstimateTest, PartsWithoutATime) {
  for (const double untimed_ms : {0.0, 50.0}) {
    WorkEstimate estimate(1);
    for (int i = 0; i < 100; ++i) estimate.Expect(10);
    double now = 0;
    for (int i = 0; i < 20; ++i) {
      const double ms = i % 2 == 0 ? 50 : untimed_ms;
      estimate.Done(i, i % 2 == 0 ? std::optional(ms) : std::nullopt, At(now += ms));
    }
    EXPECT_NEAR(estimate.RemainingSeconds(At(now)).value_or(-1), 40 * (0.05 + untimed_ms / 1000), 0.1 * 40 * (0.05 + untimed_ms / 1000))
        << untimed_ms;
  }
}

TEST_F(WorkEstimateTest, NoPartHasATime) {
  WorkEstimate estimate(1);
  for (int i = 0; i < 21; ++i) estimate.Expect(i);
  for (int i = 0; i < 21; ++i) {
    estimate.Done(i, std::nullopt, At(1000 * i));
    if (i < 7) continue;
    EXPECT_NEAR(estimate.RemainingSeconds(At(1000 * i)).value_or(-1), 20 - i, 1e-9);
  }
}

TEST_F(WorkEstimateTest, TheLastPartHasOneWorker) {
  WorkEstimate estimate(8);
  for (int i = 0; i < 17; ++i) estimate.Expect(10);
  for (int i = 0; i < 16; ++i) estimate.Done(i, 100, At(100 * (i / 8 + 1)));
  EXPECT_NEAR(estimate.RemainingSeconds(At(200)).value_or(-1), 0.05, 0.01);
}

TEST_F(WorkEstimateTest, NeverLessThanNothing) {
  WorkEstimate estimate(8);
  for (int i = 0; i < 100; ++i) estimate.Expect(10);
  for (int i = 0; i < 90; ++i) estimate.Done(i, i % 9 == 0 ? std::optional(100.0) : std::nullopt, At(100 + i));
  EXPECT_EQ(estimate.RemainingSeconds(At(200)), 0);
}

// Half of the workers do something else.
TEST_F(WorkEstimateTest, WorkersOfOthersDoNotCount) {
  WorkEstimate estimate(8);
  for (int i = 0; i < 400; ++i) estimate.Expect(10);
  for (int i = 0; i < 40; ++i) estimate.Done(i, 100, At(100 * (i / 4 + 1)));
  EXPECT_NEAR(estimate.RemainingSeconds(At(1000)).value_or(0), 9, 9 * 0.15);
}

}  // namespace
}  // namespace kiln::server
