// SPDX-License-Identifier: Apache-2.0
//
// Compile requests that leave their program open, as each mode answers them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "server/testing/tune_client.h"

namespace kiln::server {
namespace {

using namespace testing;
using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr const char* kNone = "kiln 1\nfunc @none(";

class SpaceTest : public RunTest {
 protected:
  static v1::TuneSpace Space(const std::vector<std::string>& programs, v1::TuneMode mode) {
    v1::TuneSpace space;
    space.mutable_start()->set_device("emu:sm_80");
    space.mutable_start()->set_mode(mode);
    space.mutable_start()->set_measure_on_emulator(true);
    v1::TuneArgument& argument = *space.mutable_start()->add_arguments();
    argument.set_fill(v1::TUNE_FILL_RANDOM);
    argument.mutable_tensor()->set_dtype(v1::F32);
    for (const std::int64_t extent : {256, 64}) argument.mutable_tensor()->add_shape(extent);
    argument.mutable_tensor()->set_bytes(256 * 64 * 4);
    for (const std::string& program : programs) space.add_candidates()->mutable_program()->set_module(program);
    return space;
  }
  static v1::CompileRequest Request(const v1::TuneSpace& space) {
    v1::CompileRequest request;
    request.set_target("emu:sm_80");
    request.set_space(space.SerializeAsString());
    return request;
  }
  Daemon::Result Compile(const std::vector<std::string>& programs, v1::TuneMode mode) { return daemon_->Compile(Request(Space(programs, mode))); }
  std::string Refused(const v1::CompileRequest& request) {
    const Daemon::Result result = daemon_->Compile(request);
    EXPECT_EQ(result.status.error_code(), StatusCode::INVALID_ARGUMENT);
    return result.status.error_message();
  }
  // Of kilnd so far, in KiB.
  std::size_t PeakMemory() {
    std::ifstream status("/proc/" + std::to_string(daemon_->pid()) + "/status");
    for (std::string word; status >> word;) {
      std::size_t kib = 0;
      if (word == "VmHWM:" && status >> kib) return kib;
    }
    ADD_FAILURE() << "the system does not tell";
    return 0;
  }
  static v1::TuneProgress Told(const v1::CompileReply& reply) {
    v1::TuneProgress told;
    EXPECT_TRUE(told.ParseFromString(reply.tuned()));
    return told;
  }
};

TEST_F(SpaceTest, OffTakesTheFirstThatCompiles) {
  Start();
  const auto first = Compile({Scale(64), Scale(128)}, v1::TUNE_OFF);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.reply.chosen(), 1u);
  EXPECT_FALSE(first.reply.artifact().code().empty());
  const auto second = Compile({kNone, Scale(128)}, v1::TUNE_OFF);
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.reply.chosen(), 2u);
  const auto none = Compile({kNone}, v1::TUNE_OFF);
  EXPECT_EQ(none.status.error_code(), StatusCode::INVALID_ARGUMENT) << none.status.error_message();
  EXPECT_EQ(Emulators().runs(), 0u);
}

TEST_F(SpaceTest, TheModelsChoiceIsCompiledAndNothingElse) {
  Start();
  const auto result = Compile({Scale(256), Scale(16)}, v1::TUNE_MODEL);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const v1::TuneProgress told = Told(result.reply);
  EXPECT_EQ(result.reply.chosen(), told.choices(0));
  EXPECT_EQ(told.basis(), v1::TUNE_BASIS_PLANNER);
  EXPECT_EQ(daemon_->Stats().tunings().running(), 0u);
}

TEST_F(SpaceTest, BackgroundAnswersAtOnceAndLaterHasTheFastest) {
  Start();
  const std::vector<std::string> programs = {Scale(64), Scale(128), Scale(32)};
  const auto first = Compile(programs, v1::TUNE_BACKGROUND);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  const v1::TuneProgress told = Told(first.reply);
  EXPECT_FALSE(told.has_record());
  EXPECT_EQ(first.reply.chosen(), told.choices(0));
  const TuneAnswer watched = Watched(*daemon_, told.watch());
  ASSERT_TRUE(watched.status.ok()) << watched.status.error_message();
  for (const v1::TuneMode mode : {v1::TUNE_BACKGROUND, v1::TUNE_WAIT, v1::TUNE_MODEL}) {
    const auto later = Compile(programs, mode);
    ASSERT_TRUE(later.status.ok()) << later.status.error_message();
    EXPECT_EQ(later.reply.chosen(), watched.record().winner());
    EXPECT_EQ(later.reply.key(), watched.record().measurements(static_cast<int>(watched.record().winner()) - 1).key());
    EXPECT_EQ(later.reply.origin(), v1::MEMORY);
    EXPECT_EQ(Told(later.reply).record().SerializeAsString(), watched.record().SerializeAsString());
  }
}

TEST_F(SpaceTest, AStreamThatWaitsSaysHowFarItIs) {
  Start();
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CompileStream(&context, Request(Space({Scale(64), Scale(128)}, v1::TUNE_WAIT)));
  unsigned tunings = 0;
  v1::CompileReply reply;
  for (v1::CompileProgress progress; reader->Read(&progress);) {
    if (progress.has_tuning()) ++tunings;
    if (progress.has_reply()) reply = progress.reply();
  }
  const grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(tunings, 0u);
  EXPECT_EQ(reply.chosen(), Told(reply).record().winner());
}

TEST_F(SpaceTest, WhatCandidatesLeaveOutIsTheRequests) {
  Start();
  v1::TuneSpace space = Space({"", ""}, v1::TUNE_WAIT);
  space.mutable_candidates(1)->mutable_program()->mutable_options()->set_fast_math(true);
  v1::CompileRequest request = Request(space);
  request.set_module(Scale(64));
  const auto result = daemon_->Compile(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const v1::TuneRecord record = Told(result.reply).record();
  ASSERT_EQ(record.measurements_size(), 2);
  EXPECT_NE(record.measurements(0).key(), record.measurements(1).key());
}

TEST_F(SpaceTest, ManyCandidatesOfOneProgramAreASpace) {
  Start();
  v1::TuneSpace space = Space(std::vector<std::string>(4000), v1::TUNE_OFF);
  for (int i = 0; i < space.candidates_size(); ++i) {
    space.mutable_candidates(i)->mutable_program()->mutable_options()->set_max_registers(32 + static_cast<unsigned>(i) % 200);
  }
  v1::CompileRequest request = Request(space);
  request.set_module(Scale(64));
  const auto result = daemon_->Compile(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(Told(result.reply).choices_size(), 4000);
}

TEST_F(SpaceTest, WhoLeavesEndsTheTuningThatItWaitsFor) {
  Start({"--emulators=1"});
  v1::TuneSpace space = Space({kHangs}, v1::TUNE_WAIT);
  space.mutable_start()->set_candidate_seconds(50);
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CompileStream(&context, Request(space));
  ASSERT_TRUE(Busy(1));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Busy(0));
  ExpectDoubleWorks();
}

TEST_F(SpaceTest, WhatASpaceCannotHaveIsRefusedByName) {
  Start();
  EXPECT_THAT(Refused(Request(Space({}, v1::TUNE_WAIT))), HasSubstr("a space has candidates"));
  v1::TuneSpace space = Space({Scale(64)}, v1::TUNE_WAIT);
  space.mutable_start()->mutable_arguments(0)->set_fill(v1::TUNE_FILL_DATA);
  EXPECT_THAT(Refused(Request(space)), HasSubstr("argument 1 of the space is data of the caller's"));
  space = Space({Scale(64)}, v1::TUNE_WAIT);
  space.mutable_start()->set_known_only(true);
  EXPECT_THAT(Refused(Request(space)), HasSubstr("known_only"));
  space = Space({Scale(64)}, v1::TUNE_WAIT);
  space.mutable_start()->set_measure_on_emulator(false);
  EXPECT_THAT(Refused(Request(space)), HasSubstr("emulates a GPU"));
  space = Space({Scale(64)}, v1::TUNE_WAIT);
  space.mutable_start()->set_candidates(2);
  EXPECT_THAT(Refused(Request(space)), HasSubstr("says that it has 2 candidates, and has 1"));
  space = Space({Scale(64)}, v1::TUNE_WAIT);
  v1::CompileRequest request = Request(space);
  request.clear_target();
  EXPECT_THAT(Refused(request), HasSubstr("names a target"));
  request = Request(space);
  request.set_refresh(true);
  EXPECT_THAT(Refused(request), HasSubstr("its own refresh"));
  request = Request(space);
  request.mutable_explain()->set_llvm(true);
  EXPECT_THAT(Refused(request), HasSubstr("what is explained is one program"));
  space.mutable_candidates(0)->mutable_program()->set_space("x");
  EXPECT_THAT(Refused(Request(space)), HasSubstr("no space of its own"));
  space = Space({Scale(64)}, v1::TUNE_OFF);
  space.mutable_candidates(0)->mutable_program()->set_refresh(true);
  EXPECT_THAT(Refused(Request(space)), HasSubstr("neither explained nor compiled anew"));
  space = Space({Scale(64)}, v1::TUNE_OFF);
  space.mutable_candidates(0)->mutable_program()->mutable_explain()->set_llvm(true);
  EXPECT_THAT(Refused(Request(space)), HasSubstr("neither explained nor compiled anew"));
}

// The first has its own module, so that each of the others has a copy of the request's: 8 GiB.
TEST_F(SpaceTest, EmptyCandidatesTakeNoMoreMemoryThanATenantMayHave) {
  Start();
  v1::TuneSpace space = Space(std::vector<std::string>(4000), v1::TUNE_OFF);
  space.mutable_candidates(0)->mutable_program()->set_module(Scale(64));
  v1::CompileRequest request = Request(space);
  request.set_module(std::string(2 << 20, 'x'));
  const auto refused = daemon_->Compile(request);
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.status.error_message();
  EXPECT_LT(PeakMemory(), std::size_t{1} << 20);
  EXPECT_TRUE(Compile({Scale(64)}, v1::TUNE_OFF).status.ok()) << "it holds nothing any more";
}

TEST_F(SpaceTest, WhatIsRefusedForAllIsRefusedBeforeItIsCopied) {
  Start({"--max-tune-candidates=10"});
  EXPECT_THAT(Refused(Request(Space(std::vector<std::string>(11), v1::TUNE_OFF))), HasSubstr("--max-tune-candidates"));
  v1::CompileRequest request = Request(Space({Scale(64)}, v1::TUNE_OFF));
  request.set_target(std::string(100'000, 'x'));
  EXPECT_EQ(daemon_->Compile(request).status.error_code(), StatusCode::INVALID_ARGUMENT);
}

// Each refusal but the first is known: none waits for another's.
TEST_F(SpaceTest, ThousandsThatAreKnownToBeRefusedAreTriedOneAfterTheOther) {
  Start();
  const auto none = Compile(std::vector<std::string>(4000, kNone), v1::TUNE_OFF);
  EXPECT_EQ(none.status.error_code(), StatusCode::INVALID_ARGUMENT) << none.status.error_message();
  const auto last = [] {
    std::vector<std::string> programs(4000, kNone);
    programs.back() = Scale(64);
    return programs;
  }();
  const auto found = Compile(last, v1::TUNE_OFF);
  ASSERT_TRUE(found.status.ok()) << found.status.error_message();
  EXPECT_EQ(found.reply.chosen(), 4000u);
}

// Whenever it leaves: nothing is told to a stream that has gone.
TEST_F(SpaceTest, WhoLeavesAtAnyTimeIsToldNothingMore) {
  Start();
  for (unsigned i = 0; i < 60; ++i) {
    const v1::TuneMode mode = i % 2 == 0 ? v1::TUNE_OFF : v1::TUNE_MODEL;
    std::vector<std::string> programs(8, kNone);
    for (std::string& program : programs) program += std::to_string(i);
    programs.push_back(Scale(16 + i));
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CompileStream(&context, Request(Space(programs, mode)));
    std::this_thread::sleep_for(std::chrono::microseconds(150 * i));
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_TRUE(Compile({Scale(64)}, v1::TUNE_OFF).status.ok());
}

TEST_F(SpaceTest, OtherCallsRefuseASpaceByName) {
  Start();
  const v1::CompileRequest request = Request(Space({Scale(64)}, v1::TUNE_OFF));
  v1::LookupRequest lookup;
  *lookup.mutable_request() = request;
  v1::CompileReply reply;
  grpc::ClientContext context;
  const grpc::Status status = daemon_->stub().Lookup(&context, lookup, &reply);
  EXPECT_THAT(status.error_message(), HasSubstr("leaves its program open (space)"));
  TuneClient client({Scale(64)});
  client.candidate(0).mutable_program()->set_space(request.space());
  EXPECT_THAT(client.Run(*daemon_).status.error_message(), HasSubstr("no space of its own"));
  grpc::ClientContext ensure_context;
  v1::EnsureRequest manifest;
  *manifest.add_requests() = request;
  const auto reader = daemon_->stub().EnsureKernels(&ensure_context, manifest);
  std::string said;
  for (v1::EnsureProgress progress; reader->Read(&progress);) {
    for (const v1::EnsuredKernel& kernel : progress.kernels()) said += kernel.message();
  }
  reader->Finish();
  EXPECT_THAT(said, HasSubstr("leaves its program open (space)"));
}

class SpaceTenantTest : public TwoTenantsTest {};

TEST_F(SpaceTenantTest, ASpaceThatIsMeasuredNeedsTheRightToTune) {
  const std::string compiles = NewToken("compiles", "alice", "read,compile");
  Start();
  v1::TuneSpace space;
  space.mutable_start()->set_device("emu:sm_80");
  space.mutable_start()->set_measure_on_emulator(true);
  space.add_candidates()->mutable_program()->set_module(Scale(64));
  v1::CompileRequest request;
  request.set_target("emu:sm_80");
  for (const v1::TuneMode mode : {v1::TUNE_OFF, v1::TUNE_BACKGROUND}) {
    space.mutable_start()->set_mode(mode);
    request.set_space(space.SerializeAsString());
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + compiles);
    v1::CompileReply reply;
    const grpc::Status status = daemon_->stub().Compile(&context, request, &reply);
    EXPECT_EQ(status.error_code(), mode == v1::TUNE_OFF ? StatusCode::OK : StatusCode::PERMISSION_DENIED) << status.error_message();
  }
}

}  // namespace
}  // namespace kiln::server
