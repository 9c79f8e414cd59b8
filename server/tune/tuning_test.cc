// SPDX-License-Identifier: Apache-2.0
#include "server/tune/tuning.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "server/tune/tuning_test_bench.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(TuningTest, TheFastestThatAgreesWithTheFirstWins) {
  bench_->times = {10, 8, 30, 9};
  const auto record = Run();
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->winner(), 2u);
  EXPECT_EQ(record->reference(), 1u);
  EXPECT_EQ(record->measurements(1).median(), 8);
  EXPECT_EQ(record->measurements(2).outcome(), v1::TUNE_DROPPED);
  EXPECT_EQ(bench_->compared, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}}));
  EXPECT_TRUE(bench_->stopped);
}

TEST_F(TuningTest, WhoIsFasterAndWrongIsNeverPublished) {
  bench_->times = {10, 5, 8};
  bench_->wrong = {1};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 3u);
  EXPECT_EQ(record->measurements(1).outcome(), v1::TUNE_WRONG);
  EXPECT_EQ(record->measurements(1).problem(), "its outputs are not those of candidate 1: element 0");
}

TEST_F(TuningTest, ANamedReferenceDecidesWhatIsRight) {
  bench_->times = {5, 10};
  bench_->wrong = {0};
  options_.reference = 1;
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 2u);
  EXPECT_EQ(record->measurements(0).outcome(), v1::TUNE_WRONG);
}

TEST_F(TuningTest, ANamedReferenceThatFailsEndsIt) {
  bench_->times = {5, 10};
  bench_->refuses[1] = "no such type";
  options_.reference = 1;
  const auto record = Run();
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().message, "the reference, candidate 2, failed: no such type");
}

TEST_F(TuningTest, WhatFailsCostsItselfOnlyAndIsRemembered) {
  bench_->times = {1, 2, 3, 10, 9};
  bench_->refuses[0] = "too many registers";
  bench_->fails = {{1, v1::TUNE_FAULTED}, {2, v1::TUNE_TIMED_OUT}};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 5u);
  EXPECT_EQ(record->reference(), 4u) << "the first that runs";
  EXPECT_EQ(Outcomes(*record), (std::vector{v1::TUNE_REFUSED, v1::TUNE_FAULTED, v1::TUNE_TIMED_OUT, v1::TUNE_DROPPED, v1::TUNE_MEASURED}));
  EXPECT_EQ(record->measurements(0).problem(), "too many registers");
}

TEST_F(TuningTest, AReferenceThatFailsAtLastIsReplacedByTheNext) {
  bench_->times = {10, 9, 8};
  bench_->fails_at_last = {0};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 3u);
  EXPECT_EQ(record->reference(), 2u);
  EXPECT_EQ(record->measurements(0).outcome(), v1::TUNE_FAULTED);
}

TEST_F(TuningTest, WithNothingThatRunsTheFirstReasonIsTold) {
  bench_->times = {1, 2};
  bench_->refuses = {{0, "one reason"}, {1, "another"}};
  const auto record = Run();
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().kind, Failure::Kind::kInvalid);
  EXPECT_EQ(record.error().message, "none of the 2 candidates runs and gives the right result; candidate 1: one reason");
}

TEST_F(TuningTest, TheBudgetEndsTheSearchAndWhatWasFoundIsKept) {
  bench_->times = {10, 9};
  bench_->job = milliseconds(400);
  options_.budget = seconds(1);
  const auto record = Run();
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->winner(), 2u);
  EXPECT_EQ(bench_->limits.size(), 3u);
}

TEST_F(TuningTest, ABudgetTooSmallForAnyMeasurementSaysSo) {
  bench_->times = {10};
  bench_->no_device = true;
  bench_->job = milliseconds(600);
  options_.budget = seconds(1);
  const auto record = Run();
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().message, "no candidate was measured within the budget of 1 s (the device was busy); give a larger one");
}

TEST_F(TuningTest, ADeviceThatCannotBeUsedEndsItBeforeTheBudget) {
  bench_->times = {10, 9};
  bench_->no_device = true;
  const auto record = Run();
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().kind, Failure::Kind::kNoWorker);
  EXPECT_EQ(record.error().message, "the device cannot be used: the device was busy");
  EXPECT_EQ(bench_->limits.size(), 9u);
}

TEST_F(TuningTest, ALateCompileIsNotReached) {
  bench_->times = {10, 1, 9};
  bench_->never_compiles = {1};
  bench_->on_measure = [this](std::size_t) { clock_.Pass(seconds(35)); };
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 3u);
  EXPECT_EQ(record->measurements(1).outcome(), v1::TUNE_NOT_REACHED);
}

TEST_F(TuningTest, LimitsFollowWhatTheOthersTook) {
  bench_->times = {10, 9};
  bench_->job = milliseconds(100);
  ASSERT_TRUE(Run());
  EXPECT_EQ(bench_->limits[0], milliseconds(20'000));
  EXPECT_EQ(bench_->limits[1], milliseconds(2'400));
  options_.limit = milliseconds(700);
  bench_->limits.clear();
  ASSERT_TRUE(Run());
  EXPECT_EQ(bench_->limits[0], milliseconds(700));
}

TEST_F(TuningTest, WhatIsLoadedBeforeIsNoPartOfTheLimit) {
  bench_->times = {10, 9};
  bench_->job = milliseconds(100);
  bench_->loading = seconds(7);  // a driver that starts
  ASSERT_TRUE(Run());
  EXPECT_EQ(bench_->limits[1], milliseconds(2'400)) << "or one that hangs would cost half a minute";
}

TEST_F(TuningTest, AFirstThatNobodyNamedIsCheckedBeforeItWins) {
  bench_->times = {5, 9, 8};
  auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 1u);
  EXPECT_EQ(bench_->compared, (std::vector<std::pair<std::size_t, std::size_t>>{{2, 0}}));
  bench_->wrong = {0};
  record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 3u);
  EXPECT_EQ(record->reference(), 2u);
  EXPECT_EQ(record->measurements(0).outcome(), v1::TUNE_WRONG);
  EXPECT_EQ(record->measurements(0).problem(), "its outputs are not those of candidate 3 and candidate 2, which agree: element 0");
}

TEST_F(TuningTest, AFirstThatIsSlowAndWrongBlamesNobodyElse) {
  bench_->times = {20, 9, 8};
  bench_->wrong = {0};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 3u);
  EXPECT_EQ(Outcomes(*record), (std::vector{v1::TUNE_WRONG, v1::TUNE_DROPPED, v1::TUNE_MEASURED}));
}

TEST_F(TuningTest, OfTwoThatDifferTheFirstIsRight) {
  bench_->times = {9, 5};
  bench_->wrong = {1};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 1u);
  EXPECT_EQ(record->measurements(1).outcome(), v1::TUNE_WRONG);
}

TEST_F(TuningTest, TheSameKernelTwiceIsNoWitness) {
  bench_->times = {5, 5};
  bench_->keys = {{0, "one"}, {1, "one"}};
  ASSERT_TRUE(Run());
  EXPECT_TRUE(bench_->compared.empty());
}

TEST_F(TuningTest, WhyAComparisonSaysLittleIsToldInTheRecord) {
  bench_->times = {10, 8};
  bench_->caution = "in C of the reference every element is 0";
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->caution(), bench_->caution);
}

TEST_F(TuningTest, ADeviceThatIsBusyForAWhileCostsNoTuning) {
  bench_->times = {10, 8};
  bench_->no_comparison = 3;
  const auto record = Run();
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->winner(), 2u);
  bench_->no_comparison = 1'000;
  const auto never = Run();
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().message, "what was found cannot be checked: no memory for the tensors");
}

TEST_F(TuningTest, WhatPreventsACompileForAMomentIsNotItsProgramsFault) {
  bench_->times = {10, 8};
  const Failure full{.kind = Failure::Kind::kQueueFull, .message = "too many wait", .retry_after = milliseconds(0)};
  bench_->prevented[1] = {full, full};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 2u);
  EXPECT_EQ(record->measurements(1).problem(), "");
}

TEST_F(TuningTest, WhatPreventsACompileForGoodIsToldAndNotKeptAgainstIt) {
  bench_->times = {10, 8};
  const Failure forbidden{.kind = Failure::Kind::kForbidden, .message = "needs the scope compile"};
  bench_->prevented[1] = {forbidden};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 1u);
  EXPECT_EQ(record->measurements(1).outcome(), v1::TUNE_NOT_REACHED);
  EXPECT_EQ(record->measurements(1).problem(), "needs the scope compile");
  EXPECT_EQ(record->budget_seconds(), 0) << "others may have it";
  bench_->prevented = {{0, {forbidden}}, {1, {forbidden}}};
  const auto none = Run();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, Failure::Kind::kForbidden);
  EXPECT_EQ(none.error().message, "needs the scope compile");
}

TEST_F(TuningTest, ANamedReferenceIsCompiledFirst) {
  bench_->times = {10, 9, 8};
  options_.reference = 2;
  ASSERT_TRUE(Run());
  EXPECT_EQ(bench_->begun.front(), 2u);
}

TEST_F(TuningTest, WhatThePlannerExpectsMostOfIsCompiledFirst) {
  bench_->times = {10, 9, 8, 7, 6};
  bench_->expected = {{0, 40}, {1, 10}, {3, 20}};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(bench_->begun, (std::vector<std::size_t>{1, 3, 0, 2, 4})) << "those of which it says nothing last, in their order";
  EXPECT_EQ(record->winner(), 5u) << "what is measured decides";
  EXPECT_EQ(record->measurements(3).estimate().microseconds(), 20);
  EXPECT_FALSE(record->measurements(2).has_estimate());
  EXPECT_EQ(told_.back().ranked(), 3u);
}

TEST_F(TuningTest, TheOrderIsToldBeforeAnythingIsCompiled) {
  bench_->times = {10, 9, 8};
  bench_->expected = {{0, 40}, {1, 10}};
  bench_->unplanned[2] = "no such tile";
  options_.ranks_only = true;
  options_.reference = 0;
  ASSERT_TRUE(Run());
  EXPECT_EQ(order_, (std::vector<std::size_t>{1, 0})) << "a reference is no better for being one";
  EXPECT_EQ(basis_, v1::TUNE_BASIS_PLANNER);
  EXPECT_TRUE(bench_->begun.empty());
  EXPECT_TRUE(bench_->stopped);
  bench_->expected.clear();
  ASSERT_TRUE(Run());
  EXPECT_EQ(order_, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(basis_, v1::TUNE_BASIS_CALLER);
  bench_->unplanned = {{0, "one"}, {1, "two"}, {2, "three"}};
  const auto none = Run();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "none of the 3 candidates runs and gives the right result; candidate 1: one");
}

TEST_F(TuningTest, WhatWasMeasuredElsewhereCountsBeforeThePlanner) {
  bench_->times = {10, 9, 8, 7};
  bench_->expected = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  options_.known = {0, 30, 20, 0};
  options_.most = 3;
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(order_, (std::vector<std::size_t>{2, 1, 0, 3}));
  EXPECT_EQ(basis_, v1::TUNE_BASIS_NEAR_RECORD);
  EXPECT_EQ(bench_->begun, (std::vector<std::size_t>{2, 1, 0}));
  EXPECT_EQ(record->winner(), 3u);
}

TEST_F(TuningTest, ABudgetOfCandidatesLeavesOutThoseOfWhichLeastIsExpected) {
  bench_->times = {10, 9, 8, 7};
  bench_->expected = {{0, 40}, {1, 10}, {2, 30}, {3, 20}};
  options_.most = 2;
  options_.reference = 0;
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(bench_->begun, (std::vector<std::size_t>{0, 1})) << "the reference is one of them";
  EXPECT_EQ(record->winner(), 2u);
  EXPECT_EQ(record->measurements(2).outcome(), v1::TUNE_NOT_REACHED);
  EXPECT_EQ(record->measurements(2).problem(), "");
  EXPECT_EQ(record->measurements(2).estimate().microseconds(), 30);
  EXPECT_EQ(record->budget_candidates(), 2u);
}

TEST_F(TuningTest, WhatDoesNotCompileTakesNoPlaceOfTheBudget) {
  bench_->times = {10, 9, 8, 7, 6};
  bench_->expected = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}};
  bench_->unplanned[0] = "no such tile";
  bench_->refuses[1] = "too many registers";
  options_.most = 2;
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(bench_->begun, (std::vector<std::size_t>{1, 2, 3})) << "the first is refused before";
  EXPECT_EQ(Outcomes(*record), (std::vector{v1::TUNE_REFUSED, v1::TUNE_REFUSED, v1::TUNE_DROPPED, v1::TUNE_MEASURED, v1::TUNE_NOT_REACHED}));
  EXPECT_EQ(record->measurements(0).problem(), "no such tile");
  bench_->fails = {{2, v1::TUNE_FAULTED}, {3, v1::TUNE_FAULTED}};
  const auto none = Run();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message,
            "none of the 2 candidates that the budget allows runs and gives the right result; candidate 1: no such tile; give a larger one");
}

TEST_F(TuningTest, APlannerThatIsBusyIsAskedAgainAndOneThatFailsIsNot) {
  bench_->times = {10, 9, 8};
  bench_->expected = {{0, 30}, {1, 20}, {2, 10}};
  const Failure full{.kind = Failure::Kind::kQueueFull, .message = "too many wait", .retry_after = milliseconds(0)};
  const Failure crashed{.kind = Failure::Kind::kDefect, .message = "the compiler failed"};
  bench_->unranked = {{2, {full, full}}, {1, {crashed}}};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(bench_->begun, (std::vector<std::size_t>{2, 0, 1}));
  EXPECT_EQ(record->measurements(1).outcome(), v1::TUNE_DROPPED) << "it is compiled nevertheless";
}

TEST_F(TuningTest, APlannerThatDoesNotAnswerHoldsUpAPartOfTheBudgetOnly) {
  bench_->times = {10, 9, 8};
  bench_->expected = {{2, 10}};
  bench_->never_ranked = {1};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(bench_->begun, (std::vector<std::size_t>{2, 0, 1})) << "what is not answered in time comes last";
  EXPECT_EQ(record->winner(), 3u);
}

// The steady one of this machine.
class RealClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return {}; }
  cache::SteadyTime SteadyNow() const override { return std::chrono::steady_clock::now(); }
};

TEST_F(TuningTest, ARestEndsWithTheBudget) {
  bench_->times = {10, 9};
  bench_->job = seconds(5);  // and a hundred times as long a rest
  const RealClock clock;
  const Tuning::Options options{.labels = {"", ""}, .reference = std::nullopt, .budget = milliseconds(300), .device_share = 0.01};
  const auto tuning = std::make_shared<Tuning>(options, bench_, clock, [](const v1::TuneProgress&) {});
  const auto began = clock.SteadyNow();
  ASSERT_TRUE(tuning->Run());
  EXPECT_LT(clock.SteadyNow() - began, seconds(20));
}

TEST_F(TuningTest, ProgressCountsAndNamesTheBest) {
  bench_->times = {10, 9, 8, 7};
  bench_->refuses[0] = "no";
  bench_->job = milliseconds(60);
  ASSERT_TRUE(Run());
  ASSERT_GT(told_.size(), 3u);
  EXPECT_EQ(told_.back().candidates(), 4u);
  EXPECT_EQ(told_.back().compiled(), 3u);
  EXPECT_EQ(told_.back().measured(), 3u);
  EXPECT_EQ(told_.back().failed(), 1u);
  EXPECT_EQ(told_.back().best(), 4u);
  EXPECT_EQ(told_.back().best_microseconds(), 7);
  EXPECT_GT(told_.back().left_seconds(), 0);
}

TEST_F(TuningTest, WhoIsCancelledEndsAtOnce) {
  bench_->times = {10, 9};
  bench_->never_compiles = {1};
  std::latch measured(1);
  bool first = true;
  bench_->on_measure = [&](std::size_t) {
    if (std::exchange(first, false)) measured.count_down();
  };
  std::jthread canceller([&] {
    measured.wait();
    tuning_->Cancel();
  });
  const auto record = Run();
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().kind, Failure::Kind::kCancelled);
  EXPECT_TRUE(bench_->stopped);
}

}  // namespace
}  // namespace kiln::server
