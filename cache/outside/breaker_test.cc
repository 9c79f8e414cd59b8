// SPDX-License-Identifier: Apache-2.0
#include "cache/outside/breaker.h"

#include <gtest/gtest.h>

#include "cache/testing.h"

namespace kiln::cache {
namespace {

using namespace std::chrono_literals;

class BreakerTest : public ::testing::Test {
 protected:
  SteadyTime now() const { return clock_.SteadyNow(); }
  std::chrono::milliseconds pause() const { return std::chrono::duration_cast<std::chrono::milliseconds>(*breaker_.probe_due() - now()); }

  testing::ManualClock clock_;
  Breaker breaker_{false};
};

TEST_F(BreakerTest, AProbeComesFirst) {
  EXPECT_FALSE(breaker_.usable());
  EXPECT_LE(*breaker_.probe_due(), now());
  breaker_.NoteProbe(true, now());
  EXPECT_TRUE(breaker_.usable());
  EXPECT_FALSE(breaker_.probe_due());
}

TEST_F(BreakerTest, ProbesThatFailBecomeRare) {
  breaker_.NoteProbe(true, now());
  clock_.Advance(1h);
  EXPECT_TRUE(breaker_.LeaveAlone(now()));
  EXPECT_FALSE(breaker_.LeaveAlone(now())) << "it was left alone before";
  EXPECT_EQ(pause(), 0ms);
  for (const auto expected : {100ms, 200ms, 400ms, 800ms, 1600ms, 3000ms, 3000ms}) {
    breaker_.NoteProbe(false, now());
    EXPECT_EQ(pause(), expected);
    EXPECT_FALSE(breaker_.usable());
  }
}

TEST_F(BreakerTest, AServerThatFailsAgainSoonIsLeftAloneForLonger) {
  breaker_.NoteProbe(true, now());
  clock_.Advance(1h);
  ASSERT_TRUE(breaker_.LeaveAlone(now()));
  for (const auto expected : {100ms, 200ms, 400ms}) {
    breaker_.NoteProbe(true, now());
    clock_.Advance(1s);
    ASSERT_TRUE(breaker_.LeaveAlone(now()));
    EXPECT_EQ(pause(), expected);
  }
  breaker_.NoteProbe(true, now());
  clock_.Advance(11s);
  ASSERT_TRUE(breaker_.LeaveAlone(now()));
  EXPECT_EQ(pause(), 0ms) << "what was long ago does not count";
}

TEST_F(BreakerTest, WhoBeganBeforeTheLastProbeBlamesNobody) {
  breaker_.NoteProbe(true, now());
  clock_.Advance(10ms);
  const SteadyTime began = now();
  clock_.Advance(40ms);
  EXPECT_TRUE(breaker_.Fail(began, now())) << "one failure is enough";
  EXPECT_FALSE(breaker_.Fail(began, now())) << "it is left alone already";
  breaker_.NoteProbe(true, now());
  EXPECT_FALSE(breaker_.Fail(began, now()));
  EXPECT_TRUE(breaker_.usable());
}

TEST_F(BreakerTest, PatienceIsForFailuresInARow) {
  Breaker patient(false, 3);
  patient.NoteProbe(true, now());
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(patient.Fail(now(), now()));
    EXPECT_FALSE(patient.Fail(now(), now()));
    patient.NoteAnswer(now());
  }
  EXPECT_FALSE(patient.Fail(now(), now()));
  EXPECT_FALSE(patient.Fail(now(), now()));
  EXPECT_TRUE(patient.Fail(now(), now()));
  EXPECT_FALSE(patient.usable());
  patient.NoteProbe(true, now());
  EXPECT_FALSE(patient.Fail(now(), now())) << "what was before the probe is forgotten";
  EXPECT_TRUE(patient.LeaveAlone(now())) << "whoever cannot be asked at all is no matter of patience";
}

TEST_F(BreakerTest, DoubtIsForServersThatWereNotHeardOf) {
  breaker_.NoteProbe(true, now());
  clock_.Advance(1s);
  const SteadyTime asked = now();
  breaker_.NoteAnswer(now());
  breaker_.Doubt(asked);
  EXPECT_TRUE(breaker_.usable());
  clock_.Advance(1s);
  breaker_.Doubt(now());
  EXPECT_FALSE(breaker_.usable());
  EXPECT_LE(*breaker_.probe_due(), now()) << "it is probed at once";
}

}  // namespace
}  // namespace kiln::cache
