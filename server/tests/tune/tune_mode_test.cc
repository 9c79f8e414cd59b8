// SPDX-License-Identifier: Apache-2.0
//
// Tunings that their callers do not wait for.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "server/testing/tune_client.h"

namespace kiln::server {
namespace {

using namespace testing;
using grpc::StatusCode;

// The last is what the planner expects most of: its blocks fill the device.
TuneClient Client(v1::TuneMode mode) {
  TuneClient client({Scale(256), Scale(128), Scale(2)});
  client.start().set_mode(mode);
  return client;
}

class TuneModeTest : public RunTest {
 protected:
  // Whose tuning does not end by itself.
  TuneClient Endless() {
    TuneClient client({Scale(64), kHangs});
    client.start().set_mode(v1::TUNE_BACKGROUND);
    client.start().set_candidate_seconds(40);
    return client;
  }
};

TEST_F(TuneModeTest, OffTakesThemAsTheyCome) {
  Start();
  TuneClient client = Client(v1::TUNE_OFF);
  client.start().set_measure_on_emulator(false);
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.Choices(), (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(answer.told.back().basis(), v1::TUNE_BASIS_CALLER);
  EXPECT_FALSE(answer.told.back().has_record());
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
}

TEST_F(TuneModeTest, TheModelAnswersWithoutCompilingOrMeasuring) {
  Start();
  TuneClient client = Client(v1::TUNE_MODEL);
  client.start().set_measure_on_emulator(false);  // nothing is
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.Choices().size(), 3u);
  EXPECT_EQ(answer.Choices().back(), 1u) << "one block";
  EXPECT_EQ(answer.told.back().basis(), v1::TUNE_BASIS_PLANNER);
  EXPECT_EQ(answer.told.back().watch(), "");
  EXPECT_EQ(Emulators().runs(), 0u);
  EXPECT_EQ(daemon_->Stats().tiers(0).entries(), 0u);
  EXPECT_EQ(daemon_->LinesWith({"event=tune "}), 0u);
}

TEST_F(TuneModeTest, WhereThereIsARecordItAnswersEveryModeButOff) {
  Start();
  ASSERT_EQ(Client(v1::TUNE_WAIT).Run(*daemon_).origin(), v1::COMPILED);
  for (const v1::TuneMode mode : {v1::TUNE_MODEL, v1::TUNE_BACKGROUND}) {
    const TuneAnswer answer = Client(mode).Run(*daemon_);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.origin(), v1::MEMORY);
    EXPECT_TRUE(answer.Choices().empty());
    EXPECT_GE(answer.record().winner(), 1u);
  }
  EXPECT_FALSE(Client(v1::TUNE_OFF).Run(*daemon_).told.back().has_record());
}

TEST_F(TuneModeTest, BackgroundAnswersAtOnceAndWatchTellsTheRecord) {
  Start();
  const TuneAnswer answer = Client(v1::TUNE_BACKGROUND).Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.Choices().size(), 3u);
  EXPECT_FALSE(answer.told.back().has_record());
  const std::string key = answer.told.back().watch();
  ASSERT_EQ(key.size(), 32u);
  const TuneAnswer watched = Watched(*daemon_, key);
  ASSERT_TRUE(watched.status.ok()) << watched.status.error_message();
  EXPECT_EQ(watched.record().key(), key);
  EXPECT_EQ(watched.record().measurements_size(), 3);
  const TuneAnswer later = Watched(*daemon_, key);
  ASSERT_TRUE(later.status.ok()) << later.status.error_message();
  EXPECT_EQ(later.record().SerializeAsString(), watched.record().SerializeAsString());
  EXPECT_EQ(later.origin(), v1::MEMORY);
  TuneClient known = Client(v1::TUNE_WAIT);
  known.start().set_known_only(true);
  EXPECT_EQ(known.Run(*daemon_).origin(), v1::MEMORY);
  EXPECT_EQ(daemon_->LinesWith({"event=tune ", "mode=\"background\""}), 1u);
}

TEST_F(TuneModeTest, ATuningGoesOnThoughNobodyIsLeftAndIsSharedByThoseWhoCome) {
  Start({"--emulators=1"});
  const TuneAnswer one = Endless().Run(*daemon_);
  ASSERT_TRUE(one.status.ok()) << one.status.error_message();
  const TuneAnswer other = Endless().Run(*daemon_);
  EXPECT_EQ(other.told.back().watch(), one.told.back().watch());
  EXPECT_EQ(other.Choices(), one.Choices());
  ASSERT_TRUE(Busy(1));
  {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_key(one.told.back().watch());
    const auto reader = daemon_->stub().Watch(&context, request);
    v1::TuneProgress progress;
    EXPECT_TRUE(reader->Read(&progress));
    EXPECT_EQ(progress.candidates(), 2u);
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Busy(1)) << "who watches may leave";
  // A drain ends it, and tells who watches.
  auto watching = std::async(std::launch::async, [&] { return Watched(*daemon_, one.told.back().watch()); });
  EXPECT_EQ(daemon_->Stop(), 0);
  EXPECT_EQ(watching.get().status.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(TuneModeTest, WithoutAPlaceTheModelAnswersAndSaysWhyNothingIsTuned) {
  Start({"--emulators=1", "--tunings=1"});
  ASSERT_TRUE(Endless().Run(*daemon_).status.ok());
  const TuneAnswer answer = Client(v1::TUNE_BACKGROUND).Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.Choices().size(), 3u);
  EXPECT_EQ(answer.told.back().watch(), "");
  EXPECT_NE(answer.told.back().untuned().find("--tunings"), std::string::npos) << answer.told.back().untuned();
}

TEST_F(TuneModeTest, WhatFailsEndsTheWatch) {
  Start({"--emulators=1"});
  TuneClient client({kHangs});
  client.start().set_mode(v1::TUNE_BACKGROUND);
  client.start().set_candidate_seconds(5);
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const TuneAnswer watched = Watched(*daemon_, answer.told.back().watch());
  EXPECT_EQ(watched.status.error_code(), StatusCode::INVALID_ARGUMENT) << watched.status.error_message();
  const TuneAnswer later = Watched(*daemon_, answer.told.back().watch());
  EXPECT_EQ(later.status.error_code(), StatusCode::NOT_FOUND) << later.status.error_message();
  EXPECT_EQ(Watched(*daemon_, "short").status.error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(TuneModeTest, NothingThatCompilesIsRefusedAtOnce) {
  Start();
  for (const v1::TuneMode mode : {v1::TUNE_MODEL, v1::TUNE_BACKGROUND}) {
    TuneClient client({"kiln 1\nfunc @none("});
    client.start().set_mode(mode);
    EXPECT_EQ(client.Run(*daemon_).status.error_code(), StatusCode::INVALID_ARGUMENT);
  }
  TuneClient known = Client(v1::TUNE_MODEL);
  known.start().set_known_only(true);
  EXPECT_EQ(known.Run(*daemon_).status.error_code(), StatusCode::INVALID_ARGUMENT);
  TuneClient strange = Client(static_cast<v1::TuneMode>(77));
  EXPECT_NE(strange.Run(*daemon_).status.error_message().find("TuneStart.mode cannot be 77"), std::string::npos);
}

// Another driver: what was measured with the first is used at once, and measured again.
TEST_F(TuneModeTest, ARecordOfAnotherDriverIsUsedAtOnceAndCheckedAgain) {
  UseFakeDriver();
  Start();
  const auto on_gpu = [](v1::TuneMode mode) {
    TuneClient client({Scale(64), "kiln 1\nfunc @none(", Scale(128), Scale(32)}, "cuda:1");
    client.start().set_measure_on_emulator(false);
    client.start().set_mode(mode);
    return client;
  };
  const TuneAnswer first = on_gpu(v1::TUNE_WAIT).Run(*daemon_);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(daemon_->Stop(), 0);
  ::setenv("KILN_FAKE_DRIVER_VERSION", "13070", 1);
  Start();
  ::unsetenv("KILN_FAKE_DRIVER_VERSION");
  ::unsetenv("LD_LIBRARY_PATH");
  const TuneAnswer model = on_gpu(v1::TUNE_MODEL).Run(*daemon_);
  ASSERT_TRUE(model.status.ok()) << model.status.error_message();
  EXPECT_EQ(model.told.back().basis(), v1::TUNE_BASIS_NEAR_RECORD);
  EXPECT_EQ(model.Choices().front(), first.record().winner());
  EXPECT_EQ(model.Choices().size(), 3u) << "what did not compile there is no choice";
  const TuneAnswer background = on_gpu(v1::TUNE_BACKGROUND).Run(*daemon_);
  ASSERT_TRUE(background.status.ok()) << background.status.error_message();
  EXPECT_EQ(background.told.back().basis(), v1::TUNE_BASIS_NEAR_RECORD);
  EXPECT_EQ(background.Choices(), model.Choices());
  const TuneAnswer watched = Watched(*daemon_, background.told.back().watch());
  ASSERT_TRUE(watched.status.ok()) << watched.status.error_message();
  EXPECT_NE(watched.record().driver(), first.record().driver());
  EXPECT_EQ(on_gpu(v1::TUNE_MODEL).Run(*daemon_).origin(), v1::MEMORY);
}

}  // namespace
}  // namespace kiln::server
