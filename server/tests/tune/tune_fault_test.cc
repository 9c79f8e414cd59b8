// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong in a tuning stays with the one that it is the fault of: kernels that write nothing, programs that cannot be compiled now,
// drivers that start late, GPUs without memory, clients with less time or fewer rights.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "server/testing/tune_client.h"

namespace kiln::server {
namespace {

using namespace testing;
using grpc::StatusCode;

// Writes where its input is not 0.
constexpr const char* kSkipsZeros = R"(kiln 1
func @scale(%A: global f32[256, 64], %B: global f32[256, 64]) outputs(1) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    if %A[0, 0] > 5.0 {
      store %B[0, 0] = %A[0, 0] * 2.0
    }
  }
}
)";

class TuneFaultTest : public RunTest {
 protected:
  // Of kilnd, in KiB.
  std::size_t MostMemory() {
    std::ifstream status("/proc/" + std::to_string(daemon_->pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6));
    }
    return 0;
  }
};

TEST_F(TuneFaultTest, WhoWritesNothingDoesNotWinWhereTheRightResultIsZero) {
  Start();
  TuneClient client({Scale(16), kSkipsZeros, Scale(32)});
  client.start().mutable_arguments(0)->set_fill(v1::TUNE_FILL_ZEROS);
  client.start().set_reference(1);
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_NE(answer.record().winner(), 2u);
  const auto& said = answer.record().measurements();
  if (said[1].median() < said[static_cast<int>(answer.record().winner()) - 1].median()) {  // as it is unless the machine is very busy
    EXPECT_EQ(answer.Outcomes()[1], v1::TUNE_WRONG);
  }
  if (answer.record().winner() == 3) {
    EXPECT_EQ(answer.record().caution(), "in B of the reference every element that is a number is 0");
  }
}

TEST_F(TuneFaultTest, ATimeoutOfTheImpatientIsNoAnswerForThePatient) {
  Start({"--emulators=1"});
  TuneClient client({Scale(64), kHangs});
  client.start().set_candidate_seconds(3);
  const TuneAnswer first = client.Run(*daemon_);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.Outcomes()[1], v1::TUNE_TIMED_OUT);
  client.start().set_known_only(true);
  EXPECT_EQ(client.Run(*daemon_).origin(), v1::MEMORY);
  client.start().set_candidate_seconds(5);  // which might have been enough
  EXPECT_EQ(client.Run(*daemon_).status.error_code(), StatusCode::NOT_FOUND);
}

TEST_F(TuneFaultTest, WhoHasAnotherBudgetHasATuningOfItsOwn) {
  Start({"--emulators=1"});
  TuneClient slow({Scale(64), kHangs});
  slow.start().set_candidate_seconds(4);
  auto one = std::async(std::launch::async, [&] { return slow.Run(*daemon_); });
  ASSERT_TRUE(Busy(1));
  TuneClient quick = slow;
  quick.start().set_budget_seconds(1);
  const TuneAnswer other = quick.Run(*daemon_);
  const TuneAnswer first = one.get();
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.origin(), v1::COMPILED);
  EXPECT_NE(other.origin(), v1::JOINED) << "it would wait longer than it may, or get less than it asks for";
}

TEST_F(TuneFaultTest, ManyCandidatesOfOneModuleTakeItsMemoryOnce) {
  Start();
  std::string module = Scale(64);
  module += "# " + std::string(std::size_t{2} << 20, 'x') + "\n";
  std::vector<std::string> programs(300);
  programs.front() = module;
  TuneClient client(programs);
  client.start().set_known_only(true);
  const std::size_t before = MostMemory();
  const TuneAnswer answer = client.Run(*daemon_);
  EXPECT_EQ(answer.status.error_code(), StatusCode::NOT_FOUND) << answer.status.error_message();
  EXPECT_LT(MostMemory() - before, std::size_t{200} << 10) << "and not three hundred times 2 MiB";
}

TEST_F(TuneFaultTest, TheTuningsOwnMemoryRefusesNoneOfItsCandidates) {
  Start({"--request-memory=1MiB"});
  std::vector<std::string> programs;
  for (unsigned i = 0; i < 4; ++i)
    programs.push_back(Scale(i % 2 == 0 ? 64 : 128) + "# " + std::string(std::size_t{190} << 10, static_cast<char>('a' + i)) + "\n");
  const TuneAnswer answer = TuneClient(programs).Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  for (const auto& said : answer.record().measurements()) EXPECT_FALSE(said.key().empty()) << said.problem();
}

TEST_F(TuneFaultTest, ADriverThatStartsLateIsNotTheCandidatesFault) {
  UseFakeDriver();
  ::setenv("KILN_FAKE_DRIVER_DELAY", "2", 1);
  Start();
  ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("KILN_FAKE_DRIVER_DELAY");
  TuneClient client({Scale(64), Scale(128)}, "cuda:1");
  client.start().set_measure_on_emulator(false);
  client.start().set_candidate_seconds(1);
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  for (const v1::TuneMeasurement& said : answer.record().measurements()) EXPECT_NE(said.outcome(), v1::TUNE_TIMED_OUT) << said.problem();
}

TEST_F(TuneFaultTest, AGpuWithoutMemoryIsNotTheCandidatesFault) {
  UseFakeDriver();
  Start({"--run-data=4GiB", "--run-data-total=8GiB"});
  ::unsetenv("LD_LIBRARY_PATH");
  std::string large = Scale(64);
  for (std::size_t at = 0; (at = large.find("f32[256, 64]", at)) != std::string::npos; ++at) large.replace(at, 12, "f32[5000000, 64]");
  TuneClient client({large}, "cuda:1");  // more than the fake GPU has
  v1::TuneArgument& argument = *client.start().mutable_arguments(0);
  argument.set_fill(v1::TUNE_FILL_ZEROS);
  argument.mutable_tensor()->set_shape(0, 5'000'000);
  argument.mutable_tensor()->set_bytes(std::uint64_t{5'000'000} * 64 * 4);
  client.start().set_measure_on_emulator(false);
  const TuneAnswer answer = client.Run(*daemon_);
  EXPECT_EQ(answer.status.error_code(), StatusCode::UNAVAILABLE) << answer.status.error_message();
  EXPECT_TRUE(answer.status.error_message().starts_with("the device cannot be used: ")) << answer.status.error_message();
}

TEST_F(TuneFaultTest, ATuningCannotBothMeasureAnewAndNothing) {
  Start();
  TuneClient client({Scale(64)});
  client.start().set_refresh(true);
  client.start().set_known_only(true);
  EXPECT_EQ(client.Run(*daemon_).status.error_code(), StatusCode::INVALID_ARGUMENT);
}

class TuneTenantTest : public TwoTenantsTest {
 protected:
  TuneAnswer TuneAs(const std::string& secret, TuneClient client) {
    client.SetToken(secret);
    return client.Run(*daemon_);
  }
};

TEST_F(TuneTenantTest, ARecordIsItsTenantsAlone) {
  Start();
  const TuneClient client({Scale(64), Scale(128)});
  ASSERT_EQ(TuneAs(alice_, client).origin(), v1::COMPILED);
  TuneClient known = client;
  known.start().set_known_only(true);
  EXPECT_EQ(TuneAs(alice_, known).origin(), v1::MEMORY);
  EXPECT_EQ(TuneAs(bob_, known).status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(TuneAs("", known).status.error_code(), StatusCode::NOT_FOUND) << "the default tenant";
}

TEST_F(TuneTenantTest, TenantsShareNoTuningThatIsUnderWay) {
  Start({"--emulators=1"});
  TuneClient client({Scale(64), kHangs});
  client.start().set_candidate_seconds(3);
  auto one = std::async(std::launch::async, [&] { return TuneAs(alice_, client); });
  ASSERT_TRUE(Busy(1));
  const TuneAnswer other = TuneAs(bob_, client);
  ASSERT_TRUE(other.status.ok()) << other.status.error_message();
  EXPECT_EQ(other.origin(), v1::COMPILED);
  EXPECT_EQ(one.get().origin(), v1::COMPILED);
}

TEST_F(TuneTenantTest, NobodyWatchesAnothersTuning) {
  const std::string reads = NewToken("reads", "alice", "read,compile,run");
  Start({"--emulators=1"});
  TuneClient client({Scale(64), kHangs});
  client.start().set_candidate_seconds(2);
  client.start().set_mode(v1::TUNE_BACKGROUND);
  const TuneAnswer answer = TuneAs(alice_, client);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::string key = answer.told.back().watch();
  EXPECT_EQ(Watched(*daemon_, key, bob_).status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Watched(*daemon_, key, reads).status.error_code(), StatusCode::PERMISSION_DENIED);
  const TuneAnswer own = Watched(*daemon_, key, alice_);
  ASSERT_TRUE(own.status.ok()) << own.status.error_message();
  EXPECT_EQ(own.record().winner(), 1u);
  EXPECT_EQ(Watched(*daemon_, key, bob_).status.error_code(), StatusCode::NOT_FOUND) << "its record neither";
}

TEST_F(TuneTenantTest, OneTenantDoesNotTakeAllPlaces) {
  Start({"--emulators=1", "--tunings=2"});
  TuneClient client({kHangs});
  client.start().set_candidate_seconds(20);
  grpc::ClientContext context;
  client.SetToken(alice_);
  auto one = std::async(std::launch::async, [&] { return client.Run(*daemon_, context); });
  ASSERT_TRUE(Busy(1));
  TuneClient more({Scale(64), Scale(128)});
  EXPECT_EQ(TuneAs(alice_, more).status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  more.start().set_budget_seconds(2);
  EXPECT_NE(TuneAs(bob_, more).status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << "its own first";
  context.TryCancel();
  one.get();
}

TEST_F(TuneTenantTest, WhatOneMayNotCompileIsNoRefusalForOthers) {
  const std::string tunes = NewToken("tunes", "alice", "read,tune");
  const std::string reads = NewToken("reads", "alice", "read,compile,run");
  Start();
  const TuneClient client({Scale(64), Scale(128)});
  EXPECT_EQ(TuneAs(reads, client).status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(TuneAs(tunes, client).status.error_code(), StatusCode::PERMISSION_DENIED) << "nothing is compiled yet";
  const TuneAnswer one = TuneAs(alice_, TuneClient({Scale(64)}));
  ASSERT_TRUE(one.status.ok()) << one.status.error_message();
  const TuneAnswer half = TuneAs(tunes, client);
  ASSERT_TRUE(half.status.ok()) << half.status.error_message();
  EXPECT_EQ(half.Outcomes()[1], v1::TUNE_NOT_REACHED) << half.record().measurements(1).problem();
  const TuneAnswer whole = TuneAs(alice_, client);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.origin(), v1::COMPILED);
  EXPECT_FALSE(whole.record().measurements(1).key().empty());
}

}  // namespace
}  // namespace kiln::server
