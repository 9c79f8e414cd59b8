// SPDX-License-Identifier: Apache-2.0
//
// What a tuning records of clocks and energy.
#include <gtest/gtest.h>

#include <vector>

#include "server/tune/tuning_test_bench.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(TuningTest, EachMeasurementHasItsClocksAndTheFastestTheirEnergy) {
  bench_->times = {10, 9, 30, 8};
  options_.energy = 2;
  const auto record = Run();
  ASSERT_TRUE(record) << record.error().message;
  for (const v1::TuneMeasurement& said : record->measurements()) {
    ASSERT_GT(said.microseconds_size(), 0);
    EXPECT_EQ(said.compute_mhz_size(), said.microseconds_size());
    EXPECT_EQ(said.memory_mhz_size(), said.microseconds_size());
  }
  EXPECT_EQ(record->measurements(1).compute_mhz(0), 1701u);
  EXPECT_EQ(bench_->energies, (std::vector<std::size_t>{3, 1})) << "the fastest first";
  EXPECT_EQ(record->measurements(3).energy().joules(), 0.008);
  EXPECT_FALSE(record->measurements(0).has_energy());
  EXPECT_EQ(record->energy_candidates(), 2u);
  EXPECT_EQ(record->energy_problem(), "");
}

TEST_F(TuningTest, ADeviceWithoutTheCounterIsAskedOnceAndTheRecordSaysWhy) {
  bench_->times = {10, 9, 8};
  bench_->no_energy = "no counter";
  options_.energy = 3;
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(bench_->energies.size(), 1u);
  EXPECT_EQ(record->energy_problem(), "no counter");
  EXPECT_EQ(record->winner(), 3u);
}

TEST_F(TuningTest, WhoFailsWhenItIsLaunchedAgainAndAgainHasNoEnergyAndWins) {
  bench_->times = {10, 9, 8};
  bench_->fails_when_pressed = {2};
  options_.energy = 2;
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 3u);
  EXPECT_EQ(record->measurements(2).outcome(), v1::TUNE_MEASURED);
  EXPECT_FALSE(record->measurements(2).has_energy());
  EXPECT_EQ(record->energy_problem(), "candidate 3: it broke later");
  EXPECT_TRUE(record->measurements(1).has_energy()) << "one says nothing of the next";
  EXPECT_EQ(bench_->energies.size(), 2u);
}

TEST_F(TuningTest, WhereTheBudgetIsOverNoEnergyIsMeasured) {
  bench_->times = {10, 9};
  bench_->job = milliseconds(400);
  options_.budget = seconds(1);
  options_.energy = 2;
  const auto record = Run();
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_TRUE(bench_->energies.empty());
  EXPECT_EQ(record->energy_problem(), "the budget was over");
}

}  // namespace
}  // namespace kiln::server
