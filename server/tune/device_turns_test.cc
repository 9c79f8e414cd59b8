// SPDX-License-Identifier: Apache-2.0
#include "server/tune/device_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace kiln::server {
namespace {

using std::chrono::milliseconds;

class RealClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return {}; }
  cache::SteadyTime SteadyNow() const override { return std::chrono::steady_clock::now(); }
};

class DeviceTurnsTest : public ::testing::Test {
 protected:
  static cache::SteadyTime In(milliseconds time) { return std::chrono::steady_clock::now() + time; }
  static bool Never() { return false; }

  RealClock clock_;
  const int device_ = 0, other_device_ = 0;
};

TEST_F(DeviceTurnsTest, TwoTuningsDoNotAlternateMeasurementByMeasurement) {
  DeviceTurns turns({.slice = milliseconds(100), .idle = milliseconds(50)}, clock_);
  cache::Mutex mutex;
  std::string order;
  const auto tune = [&](std::uint64_t tuning, char name) {
    for (int i = 0; i < 100; ++i) {
      const auto turn = turns.Take(&device_, tuning, In(std::chrono::seconds(60)), Never);
      ASSERT_TRUE(turn);
      std::this_thread::sleep_for(milliseconds(5));  // real time of a measurement
      cache::MutexLock lock(mutex);
      order += name;
    }
  };
  {
    std::jthread one(tune, 1, 'a'), two(tune, 2, 'b');
  }
  ASSERT_EQ(order.size(), 200u);
  std::size_t changes = 0;
  for (std::size_t i = 1; i < order.size(); ++i) changes += order[i] != order[i - 1] ? 1 : 0;
  EXPECT_GE(changes, 2u) << "each comes to its turn: " << order;
  EXPECT_LT(changes, 60u) << order;
}

TEST_F(DeviceTurnsTest, WhoHasNothingToMeasureKeepsNobodyWaiting) {
  DeviceTurns turns({.slice = std::chrono::seconds(60), .idle = milliseconds(20)}, clock_);
  ASSERT_TRUE(turns.Take(&device_, 1, In(milliseconds(0)), Never));
  EXPECT_TRUE(turns.Take(&device_, 2, In(std::chrono::seconds(10)), Never)) << "it compiles, perhaps";
}

TEST_F(DeviceTurnsTest, AMeasurementIsNotDisturbedAndWaitingEnds) {
  DeviceTurns turns({}, clock_);
  const auto turn = turns.Take(&device_, 1, In(milliseconds(0)), Never);
  ASSERT_TRUE(turn);
  EXPECT_FALSE(turns.Take(&device_, 2, In(milliseconds(30)), Never));
  std::atomic<bool> stopped = false;
  auto waits = std::async(std::launch::async,
                          [&] { return turns.Take(&device_, 3, In(std::chrono::seconds(60)), [&] { return stopped.load(); }).has_value(); });
  EXPECT_EQ(waits.wait_for(milliseconds(30)), std::future_status::timeout);
  stopped = true;
  EXPECT_FALSE(waits.get());
}

TEST_F(DeviceTurnsTest, DevicesAreIndependent) {
  DeviceTurns turns({}, clock_);
  const auto turn = turns.Take(&device_, 1, In(milliseconds(0)), Never);
  EXPECT_TRUE(turns.Take(&other_device_, 2, In(milliseconds(0)), Never));
}

}  // namespace
}  // namespace kiln::server
