// SPDX-License-Identifier: Apache-2.0
//
// Several devices that measure for one tuning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "server/tune/tuning_test_bench.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

class TuneDevicesTest : public TuningTest {
 protected:
  void SetUp() override {
    for (unsigned i = 0; i < 40; ++i) bench_->times.push_back(i == 17 ? 5.0 : 20.0 + i);
    bench_->devices = {"gpu:0", "gpu:1"};
    bench_->slower = {1.04};
  }
  // From the second measurement on it waits.
  void KeepOtherBusy() {
    bench_->busy_elsewhere = true;
    bench_->on_measure = [this, first = true](std::size_t) mutable {
      if (!std::exchange(first, false)) bench_->waits_elsewhere.wait(false);
    };
  }
  const v1::TuneDevice& Other(const v1::TuneRecord& record) { return record.devices(1); }
};

TEST_F(TuneDevicesTest, AnotherMeasuresTheFirstRoundAndTheOwnDeviceDecides) {
  const auto record = Run();
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->winner(), 18u);
  ASSERT_EQ(record->devices_size(), 2);
  EXPECT_EQ(record->devices(0).name(), "gpu:0");
  EXPECT_EQ(Other(*record).name(), "gpu:1");
  EXPECT_EQ(Other(*record).left(), "");
  const v1::TuneMeasurement& winner = record->measurements(17);
  EXPECT_EQ(winner.device(), 1u) << "whoever is left is measured by the own device";
  EXPECT_EQ(winner.median(), 5);
  EXPECT_EQ(winner.compute_mhz_size(), winner.microseconds_size());
  for (int i = 0; i < record->measurements_size(); ++i) {
    const v1::TuneMeasurement& said = record->measurements(i);
    EXPECT_NEAR(said.median(), bench_->times[static_cast<std::size_t>(i)], 1e-9) << "in the time of the own device, whoever measured it";
    EXPECT_EQ(said.compute_mhz_size(), said.microseconds_size());
  }
}

TEST_F(TuneDevicesTest, OneOfAnotherSpeedMeasuresNothing) {
  bench_->slower = {1.3};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 18u);
  ASSERT_EQ(record->devices_size(), 2);
  EXPECT_EQ(Other(*record).measured(), 0u);
  if (Other(*record).scale() > 0) {  // it came to its first measurement
    EXPECT_THAT(Other(*record).left(), HasSubstr("1.30 times as long as gpu:0"));
  }
  for (const v1::TuneMeasurement& said : record->measurements()) EXPECT_EQ(said.device(), 1u);
}

TEST_F(TuneDevicesTest, WhatFailsThereAloneIsMeasuredByTheOwnDevice) {
  for (std::size_t i = 1; i < 40; ++i) bench_->fails_elsewhere.insert(i);
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 18u);
  EXPECT_EQ(Other(*record).measured(), 0u);
  for (const v1::TuneMeasurement& said : record->measurements()) {
    EXPECT_NE(said.outcome(), v1::TUNE_FAULTED);
    EXPECT_GT(said.microseconds_size(), 0);
  }
}

TEST_F(TuneDevicesTest, ABusyOneIsNotWaitedFor) {
  KeepOtherBusy();
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->winner(), 18u);
  EXPECT_TRUE(bench_->ended_by_stop) << "and not by itself";
  EXPECT_EQ(Other(*record).measured(), 0u);
}

TEST_F(TuneDevicesTest, WhoHasOneBusyFailsWithoutWaitingForIt) {
  KeepOtherBusy();
  for (std::size_t i = 1; i < 40; ++i) bench_->wrong.insert(i);
  options_.reference = 3;
  bench_->fails_at_last = {3};
  EXPECT_FALSE(Run());
  EXPECT_TRUE(bench_->ended_by_stop);
}

TEST_F(TuneDevicesTest, OneDeviceAloneIsNoneOfSeveral) {
  bench_->devices = {"gpu:0"};
  const auto record = Run();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->devices_size(), 0);
  EXPECT_EQ(record->measurements(0).device(), 0u);
}

}  // namespace
}  // namespace kiln::server
