// SPDX-License-Identifier: Apache-2.0
//
// A tuning with a bench that makes its answers up, and a clock that only the bench lets pass.
#include "server/tune/tuning.h"

#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <set>
#include <thread>

namespace kiln::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class TestClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return cache::WallTime(std::chrono::hours(1)); }
  cache::SteadyTime SteadyNow() const override { return cache::SteadyTime(microseconds(now_)); }
  void Pass(microseconds time) { now_ += time.count(); }

 private:
  std::atomic<std::int64_t> now_ = 1'000'000'000;
};

class FakeBench final : public Bench {
 public:
  explicit FakeBench(TestClock& clock) : clock_(clock) {}

  std::vector<double> times;                     // of each candidate
  std::map<std::size_t, std::string> refuses;    // what the compiler says
  std::map<std::size_t, v1::TuneOutcome> fails;  // when it is measured
  std::set<std::size_t> wrong;                   // outputs
  std::set<std::size_t> fails_at_last;           // when its outputs are asked for
  std::set<std::size_t> never_compiles;          // in time
  microseconds job{1000};                        // of the device
  bool no_device = false;
  std::function<void(std::size_t)> on_measure;

  std::map<std::size_t, unsigned> measured;
  std::vector<milliseconds> limits;
  std::atomic<bool> stopped = false;

  bool MayCompile() override {
    cache::MutexLock lock(mutex_);
    return pending_.size() < 2;
  }
  void Compile(std::size_t candidate, std::move_only_function<void(Compiled)> done) override {
    if (never_compiles.contains(candidate)) {
      cache::MutexLock lock(mutex_);
      return pending_.push_back(std::move(done));
    }
    Compiled compiled;
    if (const auto at = refuses.find(candidate); at != refuses.end()) compiled.problem = at->second;
    else compiled.key = "key";
    done(std::move(compiled));
  }
  Measured Measure(std::size_t candidate, unsigned samples, milliseconds limit, cache::SteadyTime) override {
    if (on_measure) on_measure(candidate);
    clock_.Pass(job);
    limits.push_back(limit);
    if (no_device) return {.end = Measured::End::kNoDevice, .problem = "the device was busy"};
    if (const auto at = fails.find(candidate); at != fails.end()) {
      return {.end = Measured::End::kFailed, .outcome = at->second, .problem = "it broke", .took = job};
    }
    measured[candidate] += samples;
    return {.end = Measured::End::kMeasured, .microseconds = std::vector<double>(samples, times[candidate]), .problem = {}, .took = job};
  }
  Compared Compare(std::size_t candidate, std::size_t reference, milliseconds, cache::SteadyTime) override {
    compared.emplace_back(candidate, reference);
    if (fails_at_last.contains(reference)) return {Compared::End::kReferenceFailed, v1::TUNE_FAULTED, "it broke"};
    if (fails_at_last.contains(candidate)) return {Compared::End::kCandidateFailed, v1::TUNE_FAULTED, "it broke"};
    if (wrong.contains(candidate) != wrong.contains(reference)) return {Compared::End::kDiffers, {}, "element 0"};
    return {Compared::End::kAgrees, {}, {}};
  }
  void Stop() override {
    stopped = true;
    std::vector<std::move_only_function<void(Compiled)>> pending;
    {
      cache::MutexLock lock(mutex_);
      pending.swap(pending_);
    }
    for (auto& done : pending) done({.key = {}, .problem = "cancelled"});
  }

  std::vector<std::pair<std::size_t, std::size_t>> compared;

 private:
  TestClock& clock_;
  cache::Mutex mutex_;
  std::vector<std::move_only_function<void(Compiled)>> pending_ KILN_GUARDED_BY(mutex_);
};

class TuningTest : public ::testing::Test {
 protected:
  std::expected<v1::TuneRecord, Failure> Run() {
    options_.labels.assign(bench_->times.size(), "");
    tuning_ = std::make_shared<Tuning>(options_, bench_, clock_, [this](const v1::TuneProgress& progress) { told_.push_back(progress); });
    return tuning_->Run();
  }
  static std::vector<v1::TuneOutcome> Outcomes(const v1::TuneRecord& record) {
    std::vector<v1::TuneOutcome> outcomes;
    for (const auto& said : record.measurements()) outcomes.push_back(said.outcome());
    return outcomes;
  }

  TestClock clock_;
  std::shared_ptr<FakeBench> bench_ = std::make_shared<FakeBench>(clock_);
  Tuning::Options options_{.labels = {}, .reference = std::nullopt, .budget = seconds(60)};
  std::shared_ptr<Tuning> tuning_;
  std::vector<v1::TuneProgress> told_;
};

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
  EXPECT_EQ(bench_->limits.size(), 25u);
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
