// SPDX-License-Identifier: Apache-2.0
//
// kilnd from the outside: requests, hits, flights, deadlines, the queue, draining.
#include "server/testing/daemon_fixture.h"
#include "server/testing/expiring_call.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <limits>

#include <grpcpp/impl/codegen/client_unary_call.h>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

std::future<Daemon::Result> CompileAsync(Daemon& daemon, const v1::CompileRequest& request, milliseconds deadline = std::chrono::minutes(2)) {
  return std::async(std::launch::async, [&daemon, request, deadline] { return daemon.Compile(request, deadline); });
}

bool AllBusy(Daemon& daemon, unsigned busy) { return daemon.Stats().workers_busy() >= busy; }

grpc::Status CallWithBytes(grpc::Channel& channel, const char* name, const std::string& bytes, grpc::ByteBuffer& reply) {
  grpc::ClientContext context;
  const grpc::internal::RpcMethod method(name, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  return grpc::internal::BlockingUnaryCall(&channel, method, &context, request, &reply);
}

// HealthCheckResponse.status is field 1; 1 says SERVING.
std::string Health(grpc::Channel& channel) {
  grpc::ByteBuffer reply;
  const grpc::Status status = CallWithBytes(channel, "/grpc.health.v1.Health/Check", "", reply);
  if (!status.ok()) return status.error_message();
  grpc::Slice bytes;
  return reply.DumpToSingleSlice(&bytes).ok() && bytes.size() == 2 && bytes.begin()[1] == 1 ? "serving" : "not serving";
}

TEST_F(DaemonTest, CompilesOnceAndRemembers) {
  daemon_->Start();
  EXPECT_EQ(Health(daemon_->channel()), "serving");
  const auto first = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.reply.origin(), v1::COMPILED);
  EXPECT_EQ(first.reply.artifact().code().size(), 301u);
  EXPECT_EQ(first.reply.key().size(), 32u);
  const auto second = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
  EXPECT_EQ(second.reply.origin(), v1::MEMORY);
  EXPECT_EQ(second.reply.artifact().SerializeAsString(), first.reply.artifact().SerializeAsString());
  EXPECT_EQ(second.reply.key(), first.reply.key());
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DaemonTest, NamesAndPriorityAreNotInTheKeyAndOptionsAre) {
  daemon_->Start();
  auto request = MakeRequest(Order::kAnswer, 3);
  const std::string key = daemon_->Compile(request).reply.key();
  request.set_priority(v1::BATCH);
  request.set_module(MinimalModule("another_name"));
  const auto renamed = daemon_->Compile(request);
  EXPECT_EQ(renamed.reply.key(), key);
  EXPECT_EQ(renamed.reply.origin(), v1::MEMORY);
  request.mutable_options()->set_fast_math(true);
  EXPECT_NE(daemon_->Compile(request).reply.key(), key);
}

TEST_F(DaemonTest, ConcurrentRequestsShareOneCompile) {
  daemon_->Start();
  std::vector<std::future<Daemon::Result>> all;
  for (int i = 0; i < 24; ++i) all.push_back(CompileAsync(*daemon_, MakeRequest(Order::kSleep, 40)));
  int compiled = 0;
  for (auto& one : all) {
    const auto result = one.get();
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    compiled += result.reply.origin() == v1::COMPILED;
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DaemonTest, ADeadlineEndsOneWaiterAndNotTheCompile) {
  daemon_->Start({"--workers=1"});
  auto patient = CompileAsync(*daemon_, MakeRequest(Order::kSleep, kLong));
  ASSERT_TRUE(daemon_->Eventually([&] { return AllBusy(*daemon_, 1); }));
  ExpectExpires(
      *daemon_, "Compile",
      [&](grpc::ClientContext& context) {
        v1::CompileReply reply;
        return daemon_->stub().Compile(&context, MakeRequest(Order::kSleep, kLong), &reply);
      },
      [&](const v1::StatsReply& before) { return daemon_->Stats().joined() > before.joined(); });
  EXPECT_TRUE(daemon_->Woken(patient).status.ok());
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DaemonTest, WhenTheLastWaiterLeavesTheWorkerIsFreed) {
  daemon_->Start({"--workers=1"});
  const auto hung = daemon_->Compile(MakeRequest(Order::kHang), milliseconds(300));
  EXPECT_EQ(hung.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  const auto next = daemon_->Compile(MakeRequest(Order::kAnswer));
  EXPECT_TRUE(next.status.ok()) << next.status.error_message();
}

TEST_F(DaemonTest, AnUnaryCallIsCancelled) {
  daemon_->Start({"--workers=1"});
  grpc::ClientContext context;
  v1::CompileReply reply;
  auto call = std::async(std::launch::async, [&] { return daemon_->stub().Compile(&context, MakeRequest(Order::kHang), &reply); });
  ASSERT_TRUE(daemon_->Eventually([&] { return AllBusy(*daemon_, 1); }));
  context.TryCancel();
  EXPECT_EQ(call.get().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 0; }));
}

TEST_F(DaemonTest, AFullQueueRefusesAtOnceAndSaysWhenToComeBack) {
  daemon_->Start({"--workers=1", "--queue=1"});
  auto running = CompileAsync(*daemon_, MakeRequest(Order::kSleep, kLong));
  ASSERT_TRUE(daemon_->Eventually([&] { return AllBusy(*daemon_, 1); }));
  auto waiting = CompileAsync(*daemon_, MakeRequest(Order::kAnswer, 1));
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 1; }));
  const auto refused = daemon_->Compile(MakeRequest(Order::kAnswer, 2));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(refused.has_retry_info());
  EXPECT_TRUE(AllBusy(*daemon_, 1)) << "no worker had to be free";
  EXPECT_EQ(daemon_->Stats().refused(), 1u);
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
  EXPECT_TRUE(waiting.get().status.ok());
}

TEST_F(DaemonTest, HitsAreServedWhileAllWorkersAreBusy) {
  daemon_->Start({"--workers=1"});
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
  auto running = CompileAsync(*daemon_, MakeRequest(Order::kSleep, kLong));
  ASSERT_TRUE(daemon_->Eventually([&] { return AllBusy(*daemon_, 1); }));
  const auto hit = daemon_->Compile(MakeRequest(Order::kAnswer, 1));
  EXPECT_EQ(hit.reply.origin(), v1::MEMORY);
  EXPECT_TRUE(AllBusy(*daemon_, 1)) << "no worker had to be free";
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
}

TEST_F(DaemonTest, AStreamTellsTheStagesAndThenTheReply) {
  daemon_->Start();
  const auto stream = [&] {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CompileStream(&context, MakeRequest(Order::kAnswer, 99));
    std::vector<std::string> seen;
    for (v1::CompileProgress progress; reader->Read(&progress);) {
      seen.push_back(progress.has_reply() ? std::to_string(progress.reply().artifact().code().size()) : progress.stage());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return seen;
  };
  EXPECT_EQ(stream(), (std::vector<std::string>{"queued", "decode", "emit", "9901"}));
  EXPECT_EQ(stream(), (std::vector<std::string>{"9901"}));
}

TEST_F(DaemonTest, ACancelledStreamFreesTheWorker) {
  daemon_->Start({"--workers=1"});
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CompileStream(&context, MakeRequest(Order::kHang));
  for (v1::CompileProgress progress; reader->Read(&progress) && progress.stage() != "decode";) {
  }
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 0; }));
}

class PtxasOfDaemonTest : public DaemonTest {
 protected:
  // In the place of the one that was there.
  void Install(const std::string& version) {
    const fs::path another = folder_ / "another";
    std::ofstream(another) << "#!/bin/sh\necho " << version << "\n";
    fs::permissions(another, fs::perms::owner_all);
    ptxas_ = folder_ / "ptxas";
    fs::rename(another, ptxas_);
  }

  fs::path ptxas_;
};

// Whose version is in the keys.
TEST_F(PtxasOfDaemonTest, WhatAnEarlierPtxasMadeIsNotAnsweredAnyMore) {
  Install("12.0");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  const auto request = MakeRequest(Order::kAnswer, 1);
  const std::string first = daemon_->Compile(request).reply.key();
  EXPECT_EQ(daemon_->Compile(request).reply.origin(), v1::MEMORY);
  Install("12.8");
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 2)).status.ok()) << "for which the version is asked for";
  const auto second = daemon_->Compile(request);
  EXPECT_EQ(second.reply.origin(), v1::COMPILED);
  EXPECT_NE(second.reply.key(), first);
  Install("12.0");
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Compile(request).reply.key() == first; })) << "nobody asks for anything else";
}

TEST_F(PtxasOfDaemonTest, AnotherPtxasMakesOnlyTheCubin) {
  const auto stages = [](const v1::CompileReply& reply) {
    std::string names;
    for (const v1::Timing& timing : reply.timings()) names += timing.stage() + " ";
    return names;
  };
  Install("12.0");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  const auto request = MakeRequest(Order::kAnswer, 1);
  const auto first = daemon_->Compile(request).reply;
  EXPECT_EQ(stages(first), "decode ptxas queue ");
  Install("12.8");
  daemon_->Stop();
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  const auto second = daemon_->Compile(request).reply;
  EXPECT_EQ(second.origin(), v1::COMPILED);
  EXPECT_EQ(stages(second), "ptxas queue ");
  EXPECT_NE(second.key(), first.key());
  EXPECT_EQ(second.artifact().SerializeAsString(), first.artifact().SerializeAsString());
  ASSERT_EQ(second.diagnostics_size(), 1);
  EXPECT_EQ(second.diagnostics(0).message(), first.diagnostics(0).message());
  EXPECT_EQ(daemon_->Compile(request).reply.origin(), v1::MEMORY);

  daemon_->Stop();
  daemon_->Start({"--ptxas=none"});
  const auto plain = daemon_->Compile(request).reply;
  EXPECT_EQ(plain.origin(), v1::DISK) << "the PTX alone is what a host without ptxas makes";
  EXPECT_EQ(plain.artifact().code(), first.artifact().code());
  EXPECT_EQ(plain.artifact().cubin(), "");
  EXPECT_EQ(plain.diagnostics_size(), 0) << "ptxas' warnings are not the PTX's";
}

TEST_F(PtxasOfDaemonTest, ARefreshMakesBothLayersAnew) {
  Install("12.0");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  auto request = MakeRequest(Order::kAnswer, 1);
  (void)daemon_->Compile(request);
  request.set_refresh(true);
  const auto again = daemon_->Compile(request).reply;
  EXPECT_EQ(again.timings(0).stage(), "decode");
}

TEST_F(PtxasOfDaemonTest, PtxThatPtxasRefusesIsCompiledAnew) {
  Install("12.0");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  const auto request = MakeRequest(Order::kAnswer, kBadPtx);
  ASSERT_TRUE(daemon_->Compile(request).status.ok());
  ASSERT_EQ(daemon_->Stop(), 0);
  Install("12.8");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  const auto again = daemon_->Compile(request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.reply.timings(0).stage(), "decode");
  EXPECT_EQ(daemon_->Stats().failed(), 0u);
}

// It is served as it is, but nothing is made of what no compiler of ours is known to have made.
TEST_F(PtxasOfDaemonTest, WhatWasPutIsNotBuiltUpon) {
  const auto request = MakeRequest(Order::kAnswer, 1);
  daemon_->Start({"--accept-put=yes"});
  v1::PutRequest put;
  *put.mutable_request() = request;
  *put.mutable_artifact() = daemon_->Compile(MakeRequest(Order::kAnswer, 2)).reply.artifact();
  put.mutable_artifact()->set_code("planted");
  grpc::ClientContext context;
  v1::PutReply reply;
  const grpc::Status status = daemon_->stub().Put(&context, put, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(daemon_->Compile(request).reply.artifact().code(), "planted");
  ASSERT_EQ(daemon_->Stop(), 0);
  Install("12.0");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  const auto made = daemon_->Compile(request).reply;
  EXPECT_EQ(made.timings(0).stage(), "decode");
  EXPECT_NE(made.artifact().code(), "planted");
}

// Its cubin may be of either, and the key names one.
TEST_F(PtxasOfDaemonTest, WhatIsCompiledWhilePtxasIsReplacedIsNotKept) {
  Install("12.0");
  daemon_->Start({"--ptxas=" + ptxas_.string()});
  auto compiling = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  Install("12.8");
  const auto refused = daemon_->Woken(compiling);
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNAVAILABLE) << refused.status.error_message();
  EXPECT_NE(refused.status.error_message().find("another ptxas"), std::string::npos) << refused.status.error_message();
  Install("12.0");
  auto again = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  EXPECT_EQ(daemon_->Woken(again).reply.origin(), v1::COMPILED);
}

TEST_F(DaemonTest, CapabilitiesOfManyClientsAtOnceAreAllAnswered) {
  daemon_->Start();
  std::vector<std::future<bool>> answers;
  for (int i = 0; i < 64; ++i) {
    answers.push_back(std::async(std::launch::async, [this, i] {
      grpc::ClientContext context;
      v1::CapabilitiesRequest request;
      request.set_at_once(i % 2 == 0);
      v1::CapabilitiesReply reply;
      return daemon_->stub().Capabilities(&context, request, &reply).ok() && reply.signing_key().size() == 32 && reply.targets_size() > 5;
    }));
  }
  EXPECT_TRUE(std::ranges::all_of(answers, [](std::future<bool>& answer) { return answer.get(); }));
}

TEST_F(DaemonTest, CapabilitiesDoNotWaitForTheStoresUpkeep) {
  daemon_->Start();
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
  const fs::path scratch = fs::path(daemon_->State()) / "transfer";
  fs::create_directories(scratch);
  const fs::path bundle = scratch / "transfer-1.partial";
  ASSERT_EQ(::mkfifo(bundle.c_str(), 0600), 0) << "who writes it waits for a reader";
  auto exported = std::async(std::launch::async, [this] {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CacheExport(&context, {});
    for (v1::CacheChunk chunk; reader->Read(&chunk);) {
    }
    return reader->Finish().error_code();
  });
  ASSERT_EQ(exported.wait_for(milliseconds(300)), std::future_status::timeout) << "the upkeep stands still";
  for (const bool at_once : {true, false}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::CapabilitiesRequest request;
    request.set_at_once(at_once);
    v1::CapabilitiesReply reply;
    EXPECT_TRUE(daemon_->stub().Capabilities(&context, request, &reply).ok()) << at_once;
    EXPECT_FALSE(reply.signing_key().empty());
  }
  EXPECT_EQ(exported.wait_for(milliseconds(0)), std::future_status::timeout);
  fs::create_hard_link(bundle, folder_ / "reader");
  fs::remove(bundle);  // so that the export fails, and does not go on with a file that nobody writes
  std::ifstream(folder_ / "reader").ignore(std::numeric_limits<std::streamsize>::max());
  EXPECT_NE(exported.get(), StatusCode::OK);
}

TEST_F(DaemonTest, ProgramsFaultsComeBackAsDiagnostics) {
  daemon_->Start();
  const auto refused = daemon_->Compile(MakeRequest(Order::kRefuse));
  EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT);
  ASSERT_EQ(refused.failure().diagnostics_size(), 1);
  EXPECT_EQ(refused.failure().diagnostics(0).hint(), "send another order");
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kUnsupported)).status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 0u);

  auto unknown_target = MakeRequest(Order::kAnswer);
  unknown_target.set_target("cuda:sm_8");
  const auto unknown = daemon_->Compile(unknown_target);
  EXPECT_EQ(unknown.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(unknown.status.error_message().find("cuda:sm_80"), std::string::npos);

  auto truncated = MakeRequest(Order::kAnswer);
  truncated.set_module(truncated.module().substr(0, truncated.module().size() / 2));
  EXPECT_EQ(daemon_->Compile(truncated).status.error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(DaemonTest, ARefusalIsRememberedUntilTheCompilerChanges) {
  daemon_->Start();
  const auto expect_refused = [&](const v1::CompileRequest& request, StatusCode code) {
    const auto refused = daemon_->Compile(request);
    EXPECT_EQ(refused.status.error_code(), code);
    ASSERT_EQ(refused.failure().diagnostics_size(), 1);
    EXPECT_EQ(refused.failure().diagnostics(0).hint(), "send another order");
  };
  for (int i = 0; i < 3; ++i) expect_refused(MakeRequest(Order::kRefuse), StatusCode::INVALID_ARGUMENT);
  expect_refused(MakeRequest(Order::kUnsupported), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(daemon_->Stats().compiles(), 2u);
  EXPECT_EQ(daemon_->Stats().requests(), 4u);
  EXPECT_EQ(daemon_->Stats().hits(), 2u) << "from memory, before anything is decoded";

  auto renamed = MakeRequest(Order::kRefuse);
  renamed.set_module(MinimalModule("another_name"));  // the same key, but diagnostics may quote names
  expect_refused(renamed, StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Stats().compiles(), 3u);
  auto insisting = MakeRequest(Order::kRefuse);
  insisting.set_refresh(true);
  expect_refused(insisting, StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Stats().compiles(), 4u);

  ASSERT_EQ(daemon_->Stop(), 0);
  daemon_->Start();
  expect_refused(MakeRequest(Order::kRefuse), StatusCode::INVALID_ARGUMENT);
  expect_refused(MakeRequest(Order::kUnsupported), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
}

TEST_F(DaemonTest, LookupNeverCompiles) {
  daemon_->Start();
  v1::LookupRequest by_request;
  *by_request.mutable_request() = MakeRequest(Order::kAnswer, 4);
  const auto lookup = [&](const v1::LookupRequest& request, v1::CompileReply& reply) {
    grpc::ClientContext context;
    return daemon_->stub().Lookup(&context, request, &reply).error_code();
  };
  v1::CompileReply reply;
  EXPECT_EQ(lookup(by_request, reply), StatusCode::NOT_FOUND);
  const auto compiled = daemon_->Compile(by_request.request());
  EXPECT_EQ(lookup(by_request, reply), StatusCode::OK);
  EXPECT_EQ(reply.artifact().code().size(), 401u);
  v1::LookupRequest by_key;
  by_key.set_key(compiled.reply.key());
  EXPECT_EQ(lookup(by_key, reply), StatusCode::OK);
  EXPECT_EQ(reply.origin(), v1::MEMORY);
  by_key.set_key("short");
  EXPECT_EQ(lookup(by_key, reply), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DaemonTest, BytesOfOneMethodMeanNothingToAnother) {
  daemon_->Start();
  // A request that Compile has an answer for: its field 1 is a module, where that of a LookupRequest is a key.
  const auto compile = MakeRequest(Order::kAnswer, 1);
  ASSERT_TRUE(daemon_->Compile(compile).status.ok());
  grpc::ByteBuffer reply;
  const auto status = CallWithBytes(daemon_->channel(), "/kiln.v1.Kiln/Lookup", compile.SerializeAsString(), reply);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
}

TEST_F(DaemonTest, GarbageIsRefused) {
  daemon_->Start();
  const auto answer = [&](const char* method, const std::string& bytes) {
    grpc::ByteBuffer reply;
    return CallWithBytes(daemon_->channel(), (std::string("/kiln.v1.Kiln/") + method).c_str(), bytes, reply);
  };
  for (const char* method : {"Stats", "Capabilities", "CacheVerify", "CacheGc"}) {
    EXPECT_TRUE(answer(method, "").ok()) << method;
    for (const std::string& bytes : {std::string("\xff\xff\xff\xff garbage"), std::string("\x98\x06\x01"), std::string("\x0d\1\1\1\1")})
      EXPECT_EQ(answer(method, bytes).error_code(), StatusCode::INVALID_ARGUMENT) << method;
  }
  EXPECT_NE(answer("CacheVerify", "\x98\x06\x01").error_message().find("CacheVerifyRequest has no field 99"), std::string::npos);
  for (const char* method : {"Compile", "Lookup", "Fetch", "Put"})
    EXPECT_EQ(answer(method, "\x98\x06\x01").error_code(), StatusCode::INVALID_ARGUMENT) << method;
  auto request = MakeRequest(Order::kAnswer);
  request.set_priority(v1::Priority(77));
  EXPECT_EQ(daemon_->Compile(request).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 0u);
}

TEST_F(DaemonTest, RefreshCompilesAgainAndExplainIsNotKept) {
  daemon_->Start();
  auto request = MakeRequest(Order::kAnswer, 1);
  ASSERT_TRUE(daemon_->Compile(request).status.ok());
  request.set_refresh(true);
  EXPECT_EQ(daemon_->Compile(request).reply.origin(), v1::COMPILED);
  EXPECT_EQ(daemon_->Compile(request).reply.origin(), v1::COMPILED);
  auto explained = MakeRequest(Order::kAnswer, 2);
  explained.mutable_explain()->add_after("all");
  EXPECT_EQ(daemon_->Compile(explained).reply.origin(), v1::COMPILED);
  EXPECT_EQ(daemon_->Compile(explained).reply.origin(), v1::COMPILED);
  explained.clear_explain();
  EXPECT_EQ(daemon_->Compile(explained).reply.origin(), v1::COMPILED);
}

TEST_F(DaemonTest, OnSigtermWorkFinishesAndNothingNewBegins) {
  daemon_->Start();
  auto running = CompileAsync(*daemon_, MakeRequest(Order::kSleep, kLong));
  ASSERT_TRUE(daemon_->Eventually([&] { return AllBusy(*daemon_, 1); }));
  ::kill(daemon_->pid(), SIGTERM);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().state() == "draining"; }));
  EXPECT_EQ(Health(daemon_->channel()), "not serving");
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer)).status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
  EXPECT_EQ(daemon_->Wait(), 0);
  EXPECT_FALSE(fs::exists(daemon_->Socket()));
}

TEST_F(DaemonTest, TheGracePeriodEnds) {
  daemon_->Start({"--grace=0.2"});
  auto hung = CompileAsync(*daemon_, MakeRequest(Order::kHang));
  ASSERT_TRUE(daemon_->Eventually([&] { return AllBusy(*daemon_, 1); }));
  EXPECT_EQ(daemon_->Stop(), 0);
  EXPECT_EQ(hung.get().status.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DaemonTest, ASecondDaemonIsRefusedAndAStaleSocketReplaced) {
  daemon_->Start();
  Daemon second(folder_);
  const std::string command =
      KILN_BIN "/kilnd --listen=unix:" + daemon_->Socket() + " --state-dir=" + daemon_->State() + " 2> " + (folder_ / "second").string();
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  std::ostringstream told;
  told << std::ifstream(folder_ / "second").rdbuf();
  EXPECT_NE(told.str().find("another kilnd serves"), std::string::npos);
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok());
  daemon_->Kill();
  EXPECT_TRUE(fs::exists(daemon_->Socket()));
  daemon_->Start();
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok());
}

TEST_F(DaemonTest, TheLogNamesRequestsAndNothingFromInsideThem) {
  daemon_->Start();
  auto request = MakeRequest(Order::kAbort);
  request.set_module(MinimalModule("secret_kernel_name"));
  EXPECT_FALSE(daemon_->Compile(request).status.ok());
  request = MakeRequest(Order::kAnswer);
  request.set_module(MinimalModule("secret_kernel_name"));
  EXPECT_TRUE(daemon_->Compile(request).status.ok());
  const std::string log = daemon_->LogText();
  EXPECT_NE(log.find("event=compile request="), std::string::npos);
  EXPECT_EQ(log.find("secret_kernel_name"), std::string::npos);
}

}  // namespace
}  // namespace kiln::server::testing
