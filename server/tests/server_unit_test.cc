// SPDX-License-Identifier: Apache-2.0
//
// The parts of kilnd that need no daemon: queue, channel, reproducers, endpoints, statuses, the index of requests.
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "clients/common/endpoint.h"
#include "kiln/rpc/status.pb.h"
#include "server/config/config.h"
#include "server/flow/two_layers.h"
#include "server/queue/admission.h"
#include "server/reply/status_map.h"
#include "server/system/deadline.h"
#include "server/system/system_clock.h"
#include "server/telemetry/reproducers.h"
#include "server/wire/manifest.h"
#include "server/wire/request_index.h"
#include "server/wire/request_key.h"
#include "server/worker/channel.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Job> MakeJob(const std::string& id, v1::Priority priority, std::vector<std::string>* ended = nullptr, std::stop_token stop = {}) {
  auto job = std::make_unique<Job>();
  job->request_id = id;
  job->key = cache::Sha256(id);
  job->priority = priority;
  job->stop = std::move(stop);
  job->done = [ended, id](JobOutcome) {
    if (ended != nullptr) ended->push_back(id);
  };
  return job;
}

void Submit(Admission& admission, std::unique_ptr<Job> job) { ASSERT_TRUE(admission.Submit(job)); }

TEST(Admission, UrgentBeforePatientAndInOrderAmongEquals) {
  const cache::testing::ManualClock clock;
  Admission admission(10, 1, clock);
  Submit(admission, MakeJob("tuning", v1::TUNING));
  Submit(admission, MakeJob("batch 1", v1::BATCH));
  Submit(admission, MakeJob("batch 2", v1::BATCH));
  Submit(admission, MakeJob("now 1", v1::INTERACTIVE));
  Submit(admission, MakeJob("now 2", v1::INTERACTIVE));
  for (const char* expected : {"now 1", "now 2", "batch 1", "batch 2", "tuning"}) {
    EXPECT_EQ(admission.Take()->request_id, expected);
  }
}

TEST(Admission, AWaitingJobBecomesUrgentWhenSomebodyUrgentWantsItToo) {
  const cache::testing::ManualClock clock;
  Admission admission(10, 1, clock);
  Submit(admission, MakeJob("batch 1", v1::BATCH));
  Submit(admission, MakeJob("batch 2", v1::BATCH));
  admission.Promote(cache::Sha256("batch 2"), v1::INTERACTIVE);
  EXPECT_EQ(admission.Take()->request_id, "batch 2");
}

TEST(Admission, RefusesWhenFullAndSaysHowLongItWillTake) {
  const cache::testing::ManualClock clock;
  Admission admission(2, 1, clock);
  Submit(admission, MakeJob("a", v1::INTERACTIVE));
  Submit(admission, MakeJob("b", v1::INTERACTIVE));
  for (int i = 0; i < 200; ++i) {
    const auto job = admission.Take();
    admission.Finished(*job, {.end = JobOutcome::End::kResult, .ran = std::chrono::seconds(1)});
    Submit(admission, MakeJob("another", v1::INTERACTIVE));
  }
  auto third = MakeJob("c", v1::INTERACTIVE);
  const auto refused = admission.Submit(third);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(third);
  EXPECT_EQ(refused.error().queued, 2u);
  EXPECT_GT(refused.error().retry_after, milliseconds(2500));
  EXPECT_LT(refused.error().retry_after, milliseconds(3500));
}

TEST(Admission, WhatNobodyWaitsForMakesRoom) {
  const cache::testing::ManualClock clock;
  Admission admission(1, 1, clock);
  std::vector<std::string> ended;
  std::stop_source stop;
  Submit(admission, MakeJob("abandoned", v1::INTERACTIVE, &ended, stop.get_token()));
  stop.request_stop();
  EXPECT_EQ(ended, std::vector<std::string>{"abandoned"}) << "at once";
  EXPECT_EQ(admission.queued(), 0u);
  Submit(admission, MakeJob("late", v1::INTERACTIVE, &ended, stop.get_token()));
  EXPECT_EQ(ended.size(), 2u);
  Submit(admission, MakeJob("wanted", v1::INTERACTIVE, &ended));
  EXPECT_EQ(admission.Take()->request_id, "wanted");
}

TEST(Admission, ClosingEndsWhatWaits) {
  const cache::testing::ManualClock clock;
  Admission admission(4, 1, clock);
  std::vector<std::string> ended;
  Submit(admission, MakeJob("a", v1::BATCH, &ended));
  admission.Close();
  EXPECT_EQ(ended.size(), 1u);
  EXPECT_EQ(admission.Take(), nullptr);
  auto late = MakeJob("late", v1::BATCH, &ended);
  EXPECT_FALSE(admission.Submit(late));
}

struct Pair {
  UniqueFd ours;
  UniqueFd theirs;
  Pair() {
    std::array<int, 2> fds;
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    ours = UniqueFd(fds[0]);
    theirs = UniqueFd(fds[1]);
  }
};

const SystemClock system_clock;

Channel::Wait Within(milliseconds time) { return {.until = Deadline(system_clock, time)}; }

TEST(Channel, CarriesMessagesWhole) {
  Pair pair;
  Channel here(std::move(pair.ours));
  Channel there(std::move(pair.theirs));
  v1::WorkerEvent sent;
  sent.set_id(7);
  sent.set_started(std::string(50'000, 's'));
  ASSERT_EQ(here.Send(sent, {}), Channel::End::kOk);
  ASSERT_EQ(here.Send(sent, {}), Channel::End::kOk);
  for (int i = 0; i < 2; ++i) {
    v1::WorkerEvent received;
    ASSERT_EQ(there.Receive(received, Within(milliseconds(1000))), Channel::End::kOk);
    EXPECT_EQ(received.SerializeAsString(), sent.SerializeAsString());
  }
}

TEST(Channel, DoesNotTrustThePeer) {
  v1::WorkerEvent event;
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff garbage"), std::string("\x04\0\0\0\xff\xff\xff\xff", 8)}) {
    Pair pair;
    Channel here(std::move(pair.ours));
    ASSERT_GT(::write(pair.theirs.get(), bytes.data(), bytes.size()), 0);
    EXPECT_EQ(here.Receive(event, Within(milliseconds(1000))), Channel::End::kInvalid);
  }
}

TEST(Channel, AWaitEndsByDeadlineByWakingAndByThePeersEnd) {
  Pair pair;
  Channel here(std::move(pair.ours));
  v1::WorkerEvent event;
  EXPECT_EQ(here.Receive(event, Within(milliseconds(20))), Channel::End::kDeadline);
  Pair wake;
  ASSERT_EQ(::write(wake.theirs.get(), "x", 1), 1);
  EXPECT_EQ(here.Receive(event, {.wake_fd = wake.ours.get()}), Channel::End::kWoken);
  EXPECT_FALSE(here.PeerGone());
  ASSERT_EQ(::write(pair.theirs.get(), "\x09\0\0\0half", 8), 8);
  pair.theirs.Reset();
  EXPECT_TRUE(here.PeerGone());
  EXPECT_EQ(here.Receive(event, Within(milliseconds(1000))), Channel::End::kClosed);
}

class TestClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return wall; }
  cache::SteadyTime SteadyNow() const override { return now; }
  cache::SteadyTime now{std::chrono::hours(1)};
  cache::WallTime wall{std::chrono::hours(500'000)};
};

class ReproducersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kiln-repro-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  TestClock clock_;
};

TEST_F(ReproducersTest, KeepsTheNewestSoMany) {
  Reproducers reproducers({.directory = folder_, .others = {3, 1 << 20}}, clock_);
  std::string last;
  for (int i = 0; i < 8; ++i) {
    last = reproducers.Save(cache::Sha256(std::to_string(i)), {}, "build", "cause");
    std::filesystem::last_write_time(last, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(1000 - i));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 3);
  EXPECT_TRUE(std::filesystem::exists(last));
}

TEST_F(ReproducersTest, AFolderThatCannotBeWrittenGivesNoPath) {
  std::ofstream(folder_ / "file") << "in the way";
  Reproducers reproducers({.directory = folder_ / "file" / "below"}, clock_);
  EXPECT_EQ(reproducers.Save(cache::Sha256("a"), {}, "build", "cause"), "");
}

TEST_F(ReproducersTest, FilesOfRefusedProgramsAreKeptApart) {
  const auto save = [&](Reproducers& reproducers, int i, int age) {
    const std::string path = reproducers.Save(cache::Sha256(std::to_string(i)), {}, "build", "cause");
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(age));
    return path;
  };
  Reproducers reproducers({.directory = folder_, .open = {2, 1 << 20}, .others = {3, 1 << 20}}, clock_);
  const auto crash_twice = [&](int i, int age) {
    for (int crash = 0; crash < 2; ++crash) reproducers.NoteCrash(cache::Sha256(std::to_string(i)), "abort", save(reproducers, i, age));
  };
  crash_twice(0, 2000);
  for (int i = 100; i < 140; ++i) save(reproducers, i, 1100 - i);
  const auto known = reproducers.IsOpen(cache::Sha256("0"));
  ASSERT_TRUE(known);
  EXPECT_TRUE(std::filesystem::exists(known->reproducer)) << "though 40 newer ones came";
  for (int i = 1; i <= 2; ++i) crash_twice(i, 2000 - i);
  save(reproducers, 200, 1);
  EXPECT_EQ(reproducers.IsOpen(cache::Sha256("0"))->reproducer, "") << "what is gone is not named";
  EXPECT_NE(reproducers.IsOpen(cache::Sha256("2"))->reproducer, "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 3 + 2 + 1) << "the log is there too";
}

TEST_F(ReproducersTest, FilesAreBoundByTheirBytesToo) {
  Reproducers reproducers({.directory = folder_, .others = {100, 10'000}}, clock_);
  v1::CompileRequest request;
  request.set_module(std::string(4000, 'm'));
  for (int i = 0; i < 8; ++i) reproducers.Save(cache::Sha256(std::to_string(i)), request, "build", "cause");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);
  request.set_module(std::string(20'000, 'm'));
  const std::string large = reproducers.Save(cache::Sha256("large"), request, "build", "cause");
  EXPECT_TRUE(std::filesystem::exists(large));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(ReproducersTest, OpensAfterTwoCrashesUntilACompileEnds) {
  Reproducers reproducers({.directory = folder_}, clock_);
  const auto key = cache::Sha256("program");
  reproducers.NoteCrash(key, "killed by SIGABRT", "file");
  EXPECT_FALSE(reproducers.IsOpen(key));
  clock_.wall += std::chrono::hours(10'000);
  reproducers.NoteCrash(key, "killed by SIGABRT", "file");
  clock_.wall += std::chrono::hours(10'000);
  ASSERT_TRUE(reproducers.IsOpen(key)) << "the same build does the same";
  EXPECT_EQ(reproducers.IsOpen(key)->cause, "killed by SIGABRT");
  EXPECT_FALSE(reproducers.IsOpen(cache::Sha256("another")));
  reproducers.NoteEnd(cache::Sha256("another"));
  EXPECT_TRUE(reproducers.IsOpen(key));
  reproducers.NoteEnd(key);
  EXPECT_FALSE(reproducers.IsOpen(key));
  EXPECT_FALSE(Reproducers({.directory = folder_}, clock_).IsOpen(key)) << "nor does the next daemon think so";
  reproducers.NoteCrash(key, "again", "file");
  EXPECT_FALSE(reproducers.IsOpen(key));
}

TEST_F(ReproducersTest, TheOldestKeysMakeRoom) {
  const Reproducers::Options options{.directory = folder_, .keys = 16};
  const auto key = [](int i) { return cache::Sha256(std::to_string(i)); };
  const auto expect_newest = [&](Reproducers& reproducers) {
    for (int i = 0; i < 40; ++i) EXPECT_EQ(reproducers.IsOpen(key(i)).has_value(), i >= 24) << i;
  };
  Reproducers reproducers(options, clock_);
  for (int i = 0; i < 40; ++i) {
    for (int crash = 0; crash < 2; ++crash) reproducers.NoteCrash(key(i), "killed by SIGABRT", "");
  }
  expect_newest(reproducers);
  Reproducers next(options, clock_);
  expect_newest(next);
}

TEST_F(ReproducersTest, RememberCrashesOfTheDaemonBefore) {
  const Reproducers::Options options{.directory = folder_};
  const auto once = cache::Sha256("once"), twice = cache::Sha256("twice");
  const std::string file = (folder_ / "twice.kilnrepro").string();
  std::ofstream(file) << "reproducer";
  {
    Reproducers before(options, clock_);
    before.NoteCrash(once, "killed by SIGSEGV", file);
    for (int i = 0; i < 2; ++i) before.NoteCrash(twice, "killed\nby SIGABRT", file);
  }
  clock_.now = cache::SteadyTime(std::chrono::seconds(5));  // another boot
  clock_.wall -= std::chrono::hours(1000);                  // and a clock that was set
  std::ofstream(folder_ / "crashes", std::ios::app) << "17 2 of a line that was cut sh";
  {
    Reproducers after(options, clock_);
    EXPECT_FALSE(after.IsOpen(once));
    const auto known = after.IsOpen(twice);
    ASSERT_TRUE(known);
    EXPECT_EQ(known->cause, "killed by SIGABRT");
    EXPECT_EQ(known->reproducer, file);
    after.NoteCrash(once, "killed by SIGSEGV", file);
  }
  EXPECT_TRUE(Reproducers(options, clock_).IsOpen(once));
}

// A full disk takes a part of a line.
TEST_F(ReproducersTest, ALineThatWasCutOffDoesNotSpoilTheNext) {
  CrashLog log(folder_ / "crashes");
  const auto line = [](const char* name) { return CrashLine{.crashes = 1, .key = cache::Sha256(name), .cause = name}; };
  log.Append(line("first"));
  const auto size = std::filesystem::file_size(folder_ / "crashes");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{size + 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  log.Append(line("second"));
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(log.lines(), 1u);
  log.Append(line("third"));
  const auto lines = CrashLog(folder_ / "crashes").Read();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].cause, "first");
  EXPECT_EQ(lines[1].key, cache::Sha256("third"));
}

TEST(CrashLog, LeavesOutWhatIsNoLine) {
  const std::string hex = cache::Sha256("a").ToHex();
  const std::string good = "1700000000 2 " + hex + " a.kilnrepro killed by SIGABRT";
  const auto lines = ParseCrashLog(good + "\n\nnonsense\n1 2 abc - cause\n1 2 " + hex + " ../a cause\n1700000001 1 " + hex + " - deadline\n" + good);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(Format(lines[0]), good);
  EXPECT_EQ(lines[1].reproducer, "");
  EXPECT_EQ(lines[1].cause, "deadline");
}

TEST(Endpoint, TakesSocketsAndPortsAndSaysWhatIsWrong) {
  EXPECT_EQ(ParseEndpoint("unix:/run/kiln.sock")->socket->string(), "/run/kiln.sock");
  EXPECT_EQ(ParseEndpoint("unix:///run/kiln.sock")->address, "unix:/run/kiln.sock");
  EXPECT_FALSE(ParseEndpoint("127.0.0.1:7461")->socket);
  EXPECT_FALSE(ParseEndpoint("[::1]:7461")->socket);
  for (const std::string& wrong : {std::string("unix:relative"), "unix:/" + std::string(120, 'x'), std::string("host"), std::string(":7461"),
                                   std::string("host:port"), std::string("host:70000")}) {
    EXPECT_FALSE(ParseEndpoint(wrong)) << wrong;
  }
  EXPECT_TRUE(ParseEndpoint("unix:/" + std::string(106, 'x')));
  EXPECT_THAT(ParseEndpoint("unix:/" + std::string(107, 'x')).error(), ::testing::HasSubstr("has 108 bytes and Unix sockets take at most 107"));
}

TEST(Endpoint, ClientsDistrustFoldersThatOthersCouldHaveMade) {
  std::string parent = (std::filesystem::temp_directory_path() / "kiln-endpoint-XXXXXX").string();
  ASSERT_NE(::mkdtemp(parent.data()), nullptr);
  const std::filesystem::path folder = std::filesystem::path(parent) / "kiln-5";
  EXPECT_EQ(DistrustOf(folder, ::getuid()), "");
  EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all) << "a missing one is made";
  EXPECT_THAT(DistrustOf(folder, ::getuid() + 1), ::testing::HasSubstr("another user"));
  std::filesystem::permissions(folder, std::filesystem::perms::group_write, std::filesystem::perm_options::add);
  EXPECT_THAT(DistrustOf(folder, ::getuid()), ::testing::HasSubstr("can be written by others"));
  std::filesystem::remove(folder);
  std::filesystem::create_directory_symlink("/", folder);
  EXPECT_THAT(DistrustOf(folder, ::getuid()), ::testing::HasSubstr("is no folder"));
  std::filesystem::remove_all(parent);
}

TEST(Endpoint, DefaultsAreTheUsersOwn) {
  EXPECT_EQ(DefaultListen("/run/user/5", 5), "unix:/run/user/5/kiln.sock");
  EXPECT_EQ(DefaultListen(nullptr, 0), "unix:/run/kiln/kiln.sock");
  EXPECT_EQ(DefaultListen("", 5), "unix:/tmp/kiln-5/kiln.sock");
}

v1::CompileFailure DetailOf(const grpc::Status& status) {
  rpc::Status details;
  v1::CompileFailure failure;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  for (const google::protobuf::Any& detail : details.details()) detail.UnpackTo(&failure);
  return failure;
}

// Written out, so that it is google.rpc.Status and RetryInfo to others whatever the messages are called here.
TEST(StatusMap, ARefusalHasTheBytesOfARetryInfo) {
  using namespace std::string_literals;
  const auto status = ToStatus({.kind = Failure::Kind::kQueueFull, .message = "full", .retry_after = milliseconds(1500)});
  const std::string retry_info = "\x0a\x08\x08\x01\x10\x80\xca\xb5\xee\x01";  // 1 s and 500,000,000 ns
  const std::string detail = "\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x0a" + retry_info;
  EXPECT_EQ(status.error_details(), "\x08\x08\x12\x04"s + "full" + "\x1a\x36" + detail);
}

TEST(StatusMap, DiagnosticsThatDoNotFitAreCounted) {
  Failure failure{.kind = Failure::Kind::kInvalid, .message = "many"};
  for (int i = 0; i < 100; ++i) failure.diagnostics.emplace_back().set_message(std::string(200, 'd'));
  const auto small = ToStatus(failure);
  EXPECT_EQ(small.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LE(small.error_details().size(), kDefaultDetailsBytes);
  const auto detail = DetailOf(small);
  ASSERT_GT(detail.diagnostics_size(), 2);
  EXPECT_EQ(detail.diagnostics(detail.diagnostics_size() - 1).message(),
            std::to_string(101 - detail.diagnostics_size()) + " more diagnostics do not fit in the status");
  EXPECT_EQ(DetailOf(ToStatus(failure, 100'000)).diagnostics_size(), 100);
}

TEST(StatusMap, LongMessagesAreCutBetweenCharacters) {
  Failure failure{.kind = Failure::Kind::kStore, .message = "x"};
  for (int i = 0; i < 1000; ++i) failure.message += "é";
  const std::string message = ToStatus(failure).error_message();
  EXPECT_LT(message.size(), 1010u);
  EXPECT_EQ((message.size() - std::string("x …").size()) % 2, 0u);
}

TEST(RequestIndex, RemembersTheNewestAndForgetsTheOldest) {
  RequestIndex index(1024);
  const auto digest = [](int i) { return cache::Sha256(std::to_string(i)); };
  for (int i = 0; i < 5000; ++i) index.Remember(digest(i), digest(-i), index.generation());
  EXPECT_EQ(index.Find(digest(4999)), digest(-4999));
  EXPECT_FALSE(index.Find(digest(0)));
  int found = 0;
  for (int i = 0; i < 5000; ++i) found += index.Find(digest(i)).has_value();
  EXPECT_GT(found, 256);
  EXPECT_LE(found, 1024 + 64);
}

TEST(RequestIndex, RemembersWhenNothingWasFound) {
  RequestIndex index;
  const cache::Digest request = cache::Sha256("request"), key = cache::Sha256("key");
  const RequestIndex::Time now{std::chrono::hours(5)};
  index.NoteAbsent(request, now);
  EXPECT_FALSE(index.WasAbsentSince(request, now)) << "it is not known where it leads";
  index.Remember(request, key, index.generation());
  EXPECT_FALSE(index.WasAbsentSince(request, now - std::chrono::hours(1))) << "nobody has looked";
  index.NoteAbsent(request, now);
  EXPECT_TRUE(index.WasAbsentSince(request, now - std::chrono::seconds(1)));
  EXPECT_FALSE(index.WasAbsentSince(request, now + std::chrono::seconds(1)));
  EXPECT_EQ(index.Find(request), key);
}

v1::EnsureRequest LargeRequests(int count, std::size_t bytes) {
  v1::EnsureRequest manifest;
  for (int i = 0; i < count; ++i) manifest.add_requests()->set_module(std::string(bytes, static_cast<char>('a' + i)));
  return manifest;
}

TEST(Manifest, IsExpandedInPieces) {
  const RequestLimits limits;
  const v1::EnsureRequest request = LargeRequests(4, 3'000'000);
  Manifest manifest(request, limits);
  ASSERT_FALSE(manifest.problem());
  EXPECT_FALSE(manifest.ExpandSome()) << "12 MB are more than a piece";
  while (!manifest.ExpandSome()) {
  }
  EXPECT_EQ(manifest.items().size(), 4u);
}

TEST(RequestKey, ThePriorityIsReadAsTheMessageHasIt) {
  v1::CompileRequest request;
  request.set_module(std::string(1000, '\x28'));  // the tag of a priority, a thousand times
  EXPECT_EQ(SettingsOf(request.SerializeAsString()).priority, v1::INTERACTIVE);
  request.set_target("cuda:sm_80");
  request.mutable_options()->set_max_registers(64);
  request.set_refresh(true);
  for (const v1::Priority priority : {v1::INTERACTIVE, v1::BATCH, v1::TUNING}) {
    request.set_priority(priority);
    const std::string bytes = request.SerializeAsString();
    EXPECT_EQ(SettingsOf(bytes).priority, priority);
    v1::CompileRequest again;
    again.set_priority(v1::TUNING);
    EXPECT_EQ(SettingsOf(bytes + again.SerializeAsString()).priority, v1::TUNING) << "the last one counts";
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) (void)SettingsOf(std::string_view(bytes).substr(0, cut));
  }
  EXPECT_EQ(SettingsOf("").priority, v1::INTERACTIVE);
  EXPECT_EQ(SettingsOf(std::string(100, '\xff')).priority, v1::INTERACTIVE);
}

TEST(Manifest, AnItemIsTheRequestForOneTarget) {
  const RequestLimits limits;
  v1::EnsureRequest request = LargeRequests(2, 10);
  request.mutable_requests(1)->set_target("cuda:sm_90a");
  request.mutable_requests(1)->set_priority(v1::TUNING);
  request.mutable_requests(1)->mutable_explain();
  request.add_targets("cuda:sm_80");
  request.add_targets("hip:gfx942");
  request.add_targets("hip -mcpu=gfx942");
  Manifest manifest(request, limits);
  ASSERT_TRUE(manifest.ExpandSome());
  ASSERT_EQ(manifest.items().size(), 4u);
  EXPECT_TRUE(std::ranges::is_sorted(manifest.items(), {}, &Manifest::Item::digest));
  std::set<cache::Digest> digests;
  for (const Manifest::Item& item : manifest.items()) {
    digests.insert(item.digest);
    v1::CompileRequest compile;
    ASSERT_TRUE(compile.ParseFromString(manifest.BytesOf(item)));
    EXPECT_EQ(compile.module(), request.requests(static_cast<int>(item.request)).module());
    EXPECT_EQ(compile.target(), item.target == 0 ? "cuda:sm_80" : "hip:gfx942");
    EXPECT_EQ(compile.target(), manifest.TargetOf(item));
    EXPECT_EQ(compile.priority(), item.request == 0 ? v1::BATCH : v1::TUNING);
    EXPECT_FALSE(compile.has_explain());
    EXPECT_FALSE(manifest.ProblemOf(item));
  }
  EXPECT_EQ(digests.size(), 4u);
}

TEST(Config, LeavesProcessorsToKilndWhereThereAreSome) {
  constexpr std::array<std::pair<unsigned, unsigned>, 9> kWorkersOf{{{0, 1}, {1, 1}, {2, 2}, {3, 3}, {4, 3}, {7, 6}, {8, 6}, {16, 14}, {128, 112}}};
  for (const auto& [processors, workers] : kWorkersOf) EXPECT_EQ(DefaultWorkers(processors), workers) << processors;
  EXPECT_EQ(BetweenDecodes(2, 2), std::chrono::milliseconds(25));
  EXPECT_EQ(BetweenDecodes(1, 4), std::chrono::milliseconds(25));
  EXPECT_EQ(BetweenDecodes(16, 14), std::chrono::milliseconds(1));
}

TEST(TwoLayers, WhatPtxasSaysIsAddedToWhatTheCompilerSaid) {
  v1::CompileReply reply;
  reply.add_diagnostics()->set_message("of the compiler");
  for (const char* entry : {"kernel_0", "kernel_1"}) {
    v1::KernelResources& kernel = *reply.mutable_artifact()->mutable_report()->add_kernels();
    kernel.set_entry(entry);
    kernel.set_shared_bytes(4096);
  }
  v1::Assembled assembled;
  assembled.set_cubin("cubin");
  assembled.add_warnings()->set_message("of ptxas");
  v1::KernelResources& measured = *assembled.add_kernels();
  measured.set_entry("kernel_1");
  measured.set_registers(168);
  measured.set_spill_bytes(0);
  measured.set_shared_bytes(16);
  AddAssembled(std::move(assembled), reply);
  EXPECT_EQ(reply.artifact().cubin(), "cubin");
  ASSERT_EQ(reply.diagnostics_size(), 2);
  EXPECT_EQ(reply.diagnostics(1).message(), "of ptxas");
  const auto& kernels = reply.artifact().report().kernels();
  EXPECT_FALSE(kernels[0].has_registers());
  EXPECT_EQ(kernels[1].registers(), 168u);
  EXPECT_TRUE(kernels[1].has_spill_bytes());
  EXPECT_EQ(kernels[1].shared_bytes(), 4096u) << "of which ptxas sees a part";
}

}  // namespace
}  // namespace kiln::server
