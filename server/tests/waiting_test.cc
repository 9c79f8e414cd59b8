// SPDX-License-Identifier: Apache-2.0
//
// The parts of kilnd that wait for others, and those that others must not wait for: modules that are decoded, ptxas, the devices of the host,
// a log on a full disk, messages that are none.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <expected>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "cache/testing/watched_clock.h"
#include "kiln/v1/service.pb.h"
#include "server/pool/device_line.h"
#include "server/pool/ptxas.h"
#include "server/system/system_clock.h"
#include "server/telemetry/self_description.h"
#include "server/telemetry/telemetry.h"
#include "server/wire/decoding_room.h"
#include "server/wire/message_reader.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr auto kNever = [] { return false; };

template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 3000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));  // between looks
  return condition();
}

TEST(DecodingRoom, TakesTurns) {
  DecodingRoom room(100);
  auto first = room.Enter(60, kNever);
  std::atomic<int> in = 0;
  const auto enter = [&](std::size_t bytes) {
    return std::async(std::launch::async, [&, bytes] {
      const auto place = room.Enter(bytes, kNever);
      return ++in;
    });
  };
  auto large = enter(1000);
  ASSERT_TRUE(Eventually([&] { return room.waiting() == 1; }));
  auto small = enter(10);
  ASSERT_TRUE(Eventually([&] { return room.waiting() == 2; })) << "there is room for it, but it is not its turn";
  EXPECT_EQ(in, 0);
  first.reset();
  EXPECT_EQ(large.get(), 1) << "larger than all there is: alone";
  EXPECT_EQ(small.get(), 2);
  const auto one = room.Enter(50, kNever), other = room.Enter(50, kNever);
  EXPECT_TRUE(one && other) << "at one time";
}

TEST(DecodingRoom, WhoGivesUpLetsTheNextOneIn) {
  DecodingRoom room(100);
  auto first = room.Enter(60, kNever);
  std::atomic<bool> given_up = false;
  auto large = std::async(std::launch::async, [&] { return room.Enter(1000, [&] { return given_up.load(); }).has_value(); });
  ASSERT_TRUE(Eventually([&] { return room.waiting() == 1; }));
  auto small = std::async(std::launch::async, [&] { return room.Enter(10, kNever).has_value(); });
  ASSERT_TRUE(Eventually([&] { return room.waiting() == 2; }));
  given_up = true;
  EXPECT_FALSE(large.get());
  EXPECT_TRUE(small.get());
}

class PtxasTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/kiln-ptxas-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Install(const std::string& text) {
    const fs::path next = folder_ / "next";
    std::ofstream(next) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(next, fs::perms::owner_all);
    fs::rename(next, Program());
  }
  fs::path Program() const { return folder_ / "ptxas"; }

  fs::path folder_;
  const SystemClock clock_;
};

TEST_F(PtxasTest, OneThatDoesNotEndHasNoVersion) {
  Install("echo Build 1; exec sleep 1000");
  Ptxas ptxas(Program(), clock_, milliseconds(200));
  EXPECT_EQ(ptxas.Version(), "");
}

TEST_F(PtxasTest, NeitherHasOneThatSaysAllAndGoesOn) {
  Install("echo Build 1; exec >&-; sleep 1000");
  Ptxas ptxas(Program(), clock_, milliseconds(200));
  EXPECT_EQ(ptxas.Version(), "");
}

TEST_F(PtxasTest, IsAskedAgainWhenItIsReplacedOrCouldNotTell) {
  const std::string count = "echo asked >>" + (folder_ / "asked").string() + "\n";
  const auto asked = [&] {
    std::ifstream file(folder_ / "asked");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  cache::testing::ManualClock clock;
  Ptxas ptxas(Program(), clock);
  EXPECT_EQ(ptxas.Version(), "") << "there is none yet";
  Install(count + "echo Build 1");
  EXPECT_EQ(ptxas.Version(), "Build 1");
  EXPECT_EQ(ptxas.Version(), "Build 1");
  EXPECT_EQ(asked(), 1);
  Install(count + "echo Build 2");
  EXPECT_EQ(ptxas.Version(), "Build 2");
  Install(count + "test -e " + (folder_ / "mended").string() + " && echo Build 3");
  for (const int times : {3, 4}) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(ptxas.Version(), "");
    EXPECT_EQ(asked(), times) << "once a second";
    clock.Advance(seconds(1));
  }
  std::ofstream(folder_ / "mended").flush();
  EXPECT_EQ(ptxas.Version(), "Build 3");
}

TEST_F(PtxasTest, WhatWasKnownOfAnotherFileIsNoAnswer) {
  Install("echo Build 1");
  Ptxas ptxas(Program(), clock_, seconds(1000));
  EXPECT_EQ(ptxas.Version(), "Build 1");
  ASSERT_EQ(::mkfifo((folder_ / "go").c_str(), 0600), 0);
  Install("touch " + (folder_ / "asked").string() + "; cat " + (folder_ / "go").string() + "; echo Build 2");
  auto asking = std::async(std::launch::async, [&] { return ptxas.Version(); });
  ASSERT_TRUE(Eventually([&] { return fs::exists(folder_ / "asked"); }));
  auto meanwhile = std::async(std::launch::async, [&] { return ptxas.Version(); });
  EXPECT_EQ(meanwhile.wait_for(milliseconds(100)), std::future_status::timeout);
  std::ofstream(folder_ / "go").flush();
  EXPECT_EQ(meanwhile.get(), "Build 2");
  EXPECT_EQ(asking.get(), "Build 2");
}

// Runs that are refused when their turn has come: no worker is needed for them.
class DeviceLineTest : public testing::Test {
 protected:
  struct Run {
    std::promise<void> ended;
    std::stop_source stop;
  };
  // `ends` is called at its end, on the thread of its slot.
  std::unique_ptr<DeviceTask> Task(Run& run, const std::string& tenant, milliseconds takes, std::function<void()> ends = [] {}) {
    auto task = std::make_unique<DeviceTask>();
    task->tenant = tenant;
    task->stop = run.stop.get_token();
    task->may_begin = [this, takes]() -> std::expected<void, Failure> {
      time_.Advance(takes);
      return std::unexpected(Failure{});
    };
    task->done = [&run, ends = std::move(ends)](DeviceOutcome) {
      ends();
      run.ended.set_value();
    };
    return task;
  }
  void Submit(std::unique_ptr<DeviceTask> task) { ASSERT_TRUE(line_.Submit(task)); }

  cache::testing::ManualClock time_;
  const cache::testing::WatchedClock clock_{time_};
  Zygote zygote_{{}, clock_};
  DeviceLine line_{{.name = "emu", .workers = 2, .on_replaced = [](std::string_view, std::string_view) {}}, zygote_, clock_};
};

// It waits for a slot that is its tenant's and at the end of another run still; with it the turn goes to the other tenant, whose slot sleeps.
TEST_F(DeviceLineTest, ARunThatIsTakenOutMakesRoomForTheNextTenants) {
  Run first, others, taken_out, last;
  std::promise<void> at_its_end, go_on;
  Submit(Task(first, "x", milliseconds(0), [&] {
    at_its_end.set_value();
    go_on.get_future().wait();
  }));
  at_its_end.get_future().wait();
  Submit(Task(others, "y", milliseconds(100)));  // which has used more from then on
  others.ended.get_future().wait();
  // Whenever something comes, the slot that sleeps looks whose turn it is.
  const auto looks_after = [&](Run& run, const std::string& tenant) {
    const auto before = clock_.looks();
    Submit(Task(run, tenant, milliseconds(0)));
    return Eventually([&] { return clock_.looks() > before; });
  };
  ASSERT_TRUE(looks_after(taken_out, "x"));
  ASSERT_TRUE(looks_after(last, "y"));
  EXPECT_EQ(line_.Stats().queued(), 2u);
  taken_out.stop.request_stop();
  auto end = last.ended.get_future();
  EXPECT_EQ(end.wait_for(seconds(20)), std::future_status::ready) << "before the first one's end has been told";
  go_on.set_value();
  first.ended.get_future().wait();
}

// Who asks at the end of a look that the drivers have not answered in time waits for the next.
TEST(SelfDescription, WhoComesLateIsNotToldThatThereAreNoGpus) {
  std::atomic<int> looks = 0;
  std::promise<void> first_ends, second_ends;
  const auto devices = [&](v1::CapabilitiesReply& reply, seconds patience) {
    if (patience.count() == 0) return false;
    const int look = ++looks;
    if (look == 1) first_ends.get_future().wait();
    if (look == 2) second_ends.get_future().wait();
    if (look > 1) reply.add_devices()->set_name("cuda:0");
    return look > 1;
  };
  const auto passes = [] { return std::vector<std::string>{"verify"}; };
  SelfDescription description({}, {.passes = passes, .ptxas = [] { return std::string(); }, .devices = devices});
  ASSERT_TRUE(Eventually([&] { return looks == 1; }));
  std::atomic<int> told = -1;
  description.Ask([&](const v1::CapabilitiesReply& reply) { told = reply.devices_size(); });
  first_ends.set_value();
  ASSERT_TRUE(Eventually([&] { return looks == 2; }));
  EXPECT_EQ(told, -1);
  second_ends.set_value();
  EXPECT_TRUE(Eventually([&] { return told == 1; }));
}

TEST(Telemetry, AFullDiskIsToldOnStderr) {
  testing::internal::CaptureStderr();
  {
    const Telemetry telemetry({.file = "/dev/full"});
    telemetry.Log(Level::kInfo, "lost", {});
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cannot write /dev/full: No space left on device"));
}

TEST(ReadMessage, WhatItDislikesIsToldTheCallerAlone) {
  testing::internal::CaptureStderr();
  v1::CompileRequest request;
  EXPECT_FALSE(ReadMessage("\x12\x01\xff", request)) << "a target that is no UTF-8";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

std::string ProblemOf(const google::protobuf::Descriptor& type, const std::string& bytes) {
  const std::unique_ptr<google::protobuf::Message> message(google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
  const auto read = ReadMessage(bytes, *message);
  EXPECT_TRUE(read || read.error().kind == Failure::Kind::kMalformed);
  return read ? "" : read.error().message;
}

std::string Sent(const google::protobuf::FieldDescriptor& field, std::string value) {
  return char(field.number() << 3 | 2) + (char(value.size()) + std::move(value));
}

// Messages that have the type in them somewhere, with `bytes` in its place.
void InEachPlace(const google::protobuf::Descriptor& type, const std::string& bytes, const std::function<void(const std::string&)>& see, int depth) {
  see(bytes);
  for (int i = 0; depth > 0 && i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    if (field.message_type() == nullptr || field.is_map() || field.number() > 15) continue;
    InEachPlace(*field.message_type(), bytes, [&](const std::string& inner) { see(Sent(field, inner)); }, depth - 1);
  }
}

// What a request says and this kilnd does not know, it would not do: in no message of any call, nor within one.
TEST(ReadMessage, NothingIsTakenAndIgnored) {
  const google::protobuf::ServiceDescriptor& service = *v1::StatsRequest::descriptor()->file()->FindServiceByName("Kiln");
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::Descriptor& type = *service.method(i)->input_type();
    SCOPED_TRACE(type.name());
    EXPECT_EQ(ProblemOf(type, ""), "");
    EXPECT_THAT(ProblemOf(type, "\xff\xff\xff\xff garbage"), HasSubstr("the request is no kiln.v1."));
    InEachPlace(type, "\xf8\x3f\x01", [&](const std::string& bytes) { EXPECT_THAT(ProblemOf(type, bytes), HasSubstr(" has no field 1023")); }, 3);
  }
  v1::CompileRequest request;
  request.set_priority(v1::TUNING);
  request.mutable_options()->set_stream_k(v1::STREAM_K_ALWAYS);
  EXPECT_EQ(ProblemOf(*request.GetDescriptor(), request.SerializeAsString()), "");
  request.set_priority(v1::Priority(77));
  EXPECT_THAT(ProblemOf(*request.GetDescriptor(), request.SerializeAsString()), HasSubstr("CompileRequest.priority cannot be 77"));
  request.set_priority(v1::Priority(-1));
  EXPECT_THAT(ProblemOf(*request.GetDescriptor(), request.SerializeAsString()), HasSubstr("CompileRequest.priority cannot be -1"));
  v1::RunRequest run;
  run.mutable_start()->add_arguments()->mutable_tensor()->set_dtype(v1::DType(1000));
  EXPECT_THAT(ProblemOf(*run.GetDescriptor(), run.SerializeAsString()), HasSubstr("RunTensor.dtype cannot be 1000"));
  EXPECT_THAT(ProblemOf(*v1::StatsRequest::descriptor(), "\x0a\x01x"), HasSubstr("StatsRequest.device_states is no value of this kind"));
}

}  // namespace
}  // namespace kiln::server
