// SPDX-License-Identifier: Apache-2.0
//
// Many callers at one time: one flight for all of them, deadlines that end anywhere, a daemon that is told to stop meanwhile.
#include "server/access/tokens.h"
#include "server/testing/callers.h"
#include "server/testing/daemon_fixture.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <set>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;
using Clock = std::chrono::steady_clock;

TEST_F(DaemonTest, TwoThousandRequestsOfTwoHundredConnectionsShareOneCompile) {
  daemon_->Start();
  constexpr std::size_t kConnections = 200;
  constexpr std::size_t kRequests = 2000;
  struct Call {
    grpc::ClientContext context;
    v1::CompileReply reply;
    std::promise<grpc::Status> status;
  };
  std::vector<std::unique_ptr<v1::Kiln::Stub>> stubs;
  for (std::size_t i = 0; i < kConnections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Kiln::NewStub(grpc::CreateCustomChannel("unix:" + daemon_->Socket(), grpc::InsecureChannelCredentials(), arguments)));
  }
  const auto request = MakeRequest(Order::kSleep, 50);
  std::vector<std::unique_ptr<Call>> calls;
  for (std::size_t i = 0; i < kRequests; ++i) {
    Call& call = *calls.emplace_back(std::make_unique<Call>());
    call.context.set_wait_for_ready(true);
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    stubs[i % kConnections]->async()->Compile(&call.context, &request, &call.reply,
                                              [&call](const grpc::Status& status) { call.status.set_value(status); });
  }
  std::size_t compiled = 0;
  std::set<std::string> artifacts;
  for (const auto& call : calls) {
    const grpc::Status status = call->status.get_future().get();
    ASSERT_TRUE(status.ok()) << status.error_message();
    compiled += call->reply.origin() == v1::COMPILED;
    artifacts.insert(call->reply.artifact().SerializeAsString());
  }
  EXPECT_EQ(compiled, 1u);
  EXPECT_EQ(artifacts.size(), 1u);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DaemonTest, ADeadlineMayEndAnywhere) {
  daemon_->Start();
  std::atomic<int> in_time = 0;
  std::atomic<int> late = 0;
  std::atomic<int> otherwise = 0;
  {
    Callers callers(8, [&](unsigned caller, unsigned call) {
      std::mt19937 random(1000 * caller + call);
      auto request = MakeRequest(random() % 4 == 0 ? Order::kHang : Order::kSleep, random() % 3);
      request.mutable_options()->set_fast_math(random() % 2 == 0);
      request.mutable_options()->set_pointer_alignment(1u << random() % 5);
      request.set_refresh(random() % 2 == 0);
      const auto result = daemon_->Compile(request, milliseconds(random() % (60 + 4 * call)));  // longer until some are in time
      const auto code = result.status.error_code();
      ++(code == StatusCode::OK ? in_time : code == StatusCode::DEADLINE_EXCEEDED ? late : otherwise);
    });
    daemon_->Eventually([&] { return in_time > 0 && late > 0 && in_time + late >= 300; }, std::chrono::seconds(60));
  }
  EXPECT_GT(in_time, 0);
  EXPECT_GT(late, 0);
  EXPECT_EQ(otherwise, 0);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 0 && daemon_->Stats().queued() == 0; }))
      << "what nobody waits for any more is not compiled";
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 0u);
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 7)).status.ok());
}

TEST_F(DaemonTest, ADeadlineInTheQueueCompilesNothing) {
  daemon_->Start({"--workers=1"});
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 1), milliseconds(100)).status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 0; }));
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DaemonTest, OnSigtermUnderLoadNoAcceptedRequestFails) {
  daemon_->Start({"--grace=60"});
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
  std::vector<std::future<Daemon::Result>> running;  // so that what comes after them waits in the queue
  for (uint32_t i = 0; i < 2; ++i) {
    running.push_back(std::async(std::launch::async, [&, i] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong + i)); }));
  }
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 2; }));
  std::atomic<bool> told = false;
  std::atomic<unsigned> hits = 0;
  std::atomic<bool> down = false;
  Callers callers(12, [&](unsigned caller, unsigned call) {          // the first asks for what is known
    if (down) return std::this_thread::sleep_for(milliseconds(10));  // paces who is refused
    auto request = caller == 0 ? MakeRequest(Order::kAnswer, 1) : MakeRequest(Order::kSleep, caller);
    request.set_refresh(caller > 0);
    const auto result = daemon_->Compile(request);
    hits += caller == 0 && result.status.ok();
    if (result.status.ok()) return;
    down = true;
    EXPECT_EQ(result.status.error_code(), StatusCode::UNAVAILABLE) << result.status.error_message();
    EXPECT_TRUE(told && (caller == 0 || call > 0)) << "it was accepted: " << result.status.error_message();
  });
  ASSERT_TRUE(daemon_->Eventually([&] { return hits > 20 && daemon_->Stats().queued() == 11; }));
  told = true;
  ::kill(daemon_->pid(), SIGTERM);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->LinesWith({"event=draining"}) == 1; }));
  for (auto& one : running) EXPECT_TRUE(daemon_->Woken(one).status.ok());
  EXPECT_EQ(daemon_->Wait(), 0);
  EXPECT_TRUE(daemon_->Eventually([&] { return down.load(); }));
  callers.Stop();
}

TEST_F(DaemonTest, StatsAreTrueUntilTheEndOfADrain) {
  daemon_->Start({"--grace=0.3", "--workers=2"});
  std::atomic<unsigned> answers = 0;
  std::atomic<unsigned> wrong = 0;
  Callers watchers(8, [&](unsigned, unsigned) {
    grpc::ClientContext context;
    v1::StatsReply reply;
    if (!daemon_->stub().Stats(&context, {}, &reply).ok()) return std::this_thread::sleep_for(milliseconds(5));  // paces who is refused
    ++answers;
    wrong += reply.workers() != 2 || reply.workers_busy() > 2;
  });
  auto hung = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kHang)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_EQ(daemon_->Stop(), 0);
  watchers.Stop();
  EXPECT_FALSE(hung.get().status.ok());
  EXPECT_GT(answers, 0u);
  EXPECT_EQ(wrong, 0u);
}

constexpr std::size_t kLarge = 7'500'000;  // of 64 MiB

TEST_F(DaemonTest, WhatNobodyWaitsForLeavesTheQueueAtOnce) {
  daemon_->Start({"--workers=1"});
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 1), milliseconds(100)).status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 0; }, std::chrono::seconds(5)));
  EXPECT_EQ(daemon_->Stats().workers_busy(), 1u) << "no worker had to look at it";
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
}

// A Compile under way, until it ends or is left.
class OpenCompile {
 public:
  OpenCompile(Daemon& daemon, v1::CompileRequest request, const std::string& authorization = "") : request_(std::move(request)) {
    if (!authorization.empty()) context_.AddMetadata("authorization", authorization);
    end_ = std::async(std::launch::async, [this, &daemon] { return daemon.stub().Compile(&context_, request_, &reply_); });
  }
  ~OpenCompile() { context_.TryCancel(); }

  bool Ended() const { return end_.wait_for(milliseconds(0)) == std::future_status::ready; }
  grpc::Status End() { return end_.get(); }

 private:
  const v1::CompileRequest request_;
  grpc::ClientContext context_;
  v1::CompileReply reply_;
  std::future<grpc::Status> end_;
};
using OpenCompiles = std::vector<std::unique_ptr<OpenCompile>>;

TEST_F(DaemonTest, ARequestIsChargedAsLongAsItsCompileLasts) {
  daemon_->Start({"--workers=1"});
  const auto open = [&](OpenCompiles& calls, std::size_t padding) {
    for (uint32_t i = 0; i < 7; ++i) {
      calls.push_back(std::make_unique<OpenCompile>(*daemon_, Padded(MakeRequest(Order::kHang, i), padding)));
    }
  };
  OpenCompiles first;
  OpenCompiles joiners;
  open(first, kLarge);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().flights() == 7; }, std::chrono::seconds(30)));
  open(joiners, 1);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().joined() == 7; }, std::chrono::seconds(30)));
  first.clear();
  const auto more = daemon_->Compile(Padded(MakeRequest(Order::kAnswer, 8), kLarge));
  EXPECT_EQ(more.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << more.status.error_message();
  EXPECT_TRUE(more.has_retry_info());
  joiners.clear();
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Compile(Padded(MakeRequest(Order::kAnswer, 8), kLarge)).status.ok(); }));
}

TEST_F(DaemonTest, AFullQueueServesWhatIsOnDisk) {
  daemon_->Start({"--workers=1", "--queue=1", "--memory-cache=1KiB"});
  constexpr uint32_t kKnown = 40;
  for (uint32_t i = 0; i < kKnown; ++i) ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok());
  const auto invalid = MakeRequest(Order::kRefuse);
  const grpc::Status diagnosed = daemon_->Compile(invalid).status;
  ASSERT_EQ(diagnosed.error_code(), StatusCode::INVALID_ARGUMENT);
  OpenCompiles full;
  for (uint32_t i = 0; i < 2; ++i) {
    full.push_back(std::make_unique<OpenCompile>(*daemon_, MakeRequest(Order::kHang, i)));
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1 && daemon_->Stats().queued() == i; }));
  }
  EXPECT_EQ(daemon_->Compile(invalid).status.error_message(), diagnosed.error_message());
  for (uint32_t i = 0; i < 3 * kKnown; ++i) {
    const auto hit = daemon_->Compile(MakeRequest(Order::kAnswer, i % kKnown));
    ASSERT_TRUE(hit.status.ok()) << hit.status.error_message();
    EXPECT_EQ(hit.reply.origin(), v1::DISK);
    const auto excess = daemon_->Compile(MakeRequest(Order::kAnswer, kKnown + i % 3));
    ASSERT_EQ(excess.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << excess.status.error_message();
    EXPECT_TRUE(excess.has_retry_info());
  }
}

// gRPC's own copy of a request that is being compiled would count against --connection-memory, which is for what has not been read yet.
TEST_F(DaemonTest, RequestsUnderWayAreNoMessagesThatNobodyHasRead) {
  daemon_->Start({"--workers=1", "--connection-memory=32MiB"});
  OpenCompiles ranks;
  const auto request = Padded(MakeRequest(Order::kHang), 4'000'000);
  for (std::uint64_t i = 0; i < 16; ++i) {
    ranks.push_back(std::make_unique<OpenCompile>(*daemon_, request));
    const auto is_there = [&] { return daemon_->Stats().flights() == 1 && daemon_->Stats().joined() == i; };
    ASSERT_TRUE(daemon_->Eventually([&] { return ranks.back()->Ended() || is_there(); }, std::chrono::seconds(30)));
  }
  for (const auto& rank : ranks) EXPECT_FALSE(rank->Ended()) << rank->End().error_message();
}

class TenantTest : public DaemonTest {
 protected:
  struct Tenant {
    std::string authorization;
    std::atomic<unsigned> done = 0;
    std::atomic<unsigned> refused = 0;
  };

  void SetUp() override {
    DaemonTest::SetUp();
    fs::create_directories(daemon_->State());
    std::vector<Token> tokens;
    for (Tenant* tenant : {&flood_, &small_}) {
      const std::string secret = NewSecret();
      const std::string name = tenant == &flood_ ? "flood" : "small";
      tokens.push_back({name, name, *ParseScopes("read,compile"), HashToken(secret), std::nullopt});
      tenant->authorization = "Bearer " + secret;
    }
    ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", tokens));
  }

  // A program of its own.
  v1::CompileRequest Fresh(uint32_t tens_of_ms = 1) {
    v1::Module module;
    module.ParseFromString(MinimalModule());
    module.mutable_exprs(0)->set_int_value(++programs_);
    auto request = MakeRequest(Order::kSleep, tens_of_ms);
    request.set_module(module.SerializeAsString());
    return request;
  }

  v1::CompileRequest Hanging() {
    auto request = Fresh();
    request.mutable_options()->set_max_registers(Encode(Order::kHang));
    return request;
  }

  grpc::Status Compile(Tenant& tenant, const v1::CompileRequest& request) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", tenant.authorization);
    v1::CompileReply reply;
    return daemon_->stub().Compile(&context, request, &reply);
  }

  void CompileAs(Tenant& tenant) {
    const grpc::Status status = Compile(tenant, Fresh(3));
    if (status.ok()) {
      ++tenant.done;
    } else {
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      ++tenant.refused;
      std::this_thread::sleep_for(milliseconds(100));  // paces who is refused
    }
  }

  Tenant flood_;
  Tenant small_;
  std::atomic<int> programs_ = 0;
};

TEST_F(TenantTest, LargeRequestsOfOneLeaveRoomForAnother) {
  daemon_->Start({"--workers=9"});
  OpenCompiles flood;
  for (int i = 0; i < 12; ++i) flood.push_back(std::make_unique<OpenCompile>(*daemon_, Padded(Hanging(), kLarge), flood_.authorization));
  const auto refused = [&] { return std::ranges::count_if(flood, [](const auto& call) { return call->Ended(); }); };
  const auto all_are_there = [&] { return refused() + std::ptrdiff_t{daemon_->Stats().workers_busy()} == 12; };
  ASSERT_TRUE(daemon_->Eventually(all_are_there, std::chrono::seconds(30)));
  EXPECT_GE(refused(), 4);
  EXPECT_LE(refused(), 8);
  for (const auto& call : flood) {
    if (call->Ended()) {
      EXPECT_EQ(call->End().error_code(), StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  const grpc::Status status = Compile(small_, Padded(Fresh(), kLarge));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// As one does that a tenant has made something else of.
TEST_F(TenantTest, AWorkerThatDoesNotEndWhenItShouldIsKilled) {
  daemon_->Start({"--workers=1"});
  ASSERT_TRUE(Compile(flood_, Fresh()).ok());
  const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
  std::vector<pid_t> stopped;
  ASSERT_TRUE(daemon_->Eventually([&] {  // until it has ended, who lists the GPUs is one too
    stopped = Daemon::Children(zygote);
    return stopped.size() == 1;
  }));
  ::kill(stopped[0], SIGSTOP);
  EXPECT_TRUE(Compile(small_, Fresh()).ok());
  EXPECT_TRUE(daemon_->Eventually([&] { return std::ranges::count(Daemon::Children(zygote), stopped[0]) == 0; }));
}

// Reading and decoding what is refused then would take kilnd's time from the workers.
TEST_F(TenantTest, UnderAFloodFewRequestsAreReadAndTheOthersRefused) {
  daemon_->Start();
  const auto stored = Fresh();
  ASSERT_TRUE(Compile(small_, stored).ok());
  ASSERT_EQ(daemon_->Stop(), 0);
  // 13 of one priority fill it as far as they may: others of its tenant, more urgent or less, would still find room. Where the workers leave
  // kilnd no processor few are read.
  const unsigned workers = std::max(1u, std::thread::hardware_concurrency());
  daemon_->Start({"--workers=" + std::to_string(workers), "--queue=16", "--grace=0.2"});
  const auto shared = Hanging();
  std::vector<std::future<grpc::Status>> busy;
  const auto start = [&](const v1::CompileRequest& request) {
    busy.push_back(std::async(std::launch::async, [this, request] { return Compile(small_, request); }));
  };
  start(shared);
  for (unsigned i = 1; i < workers; ++i) start(Hanging());
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == workers; }));
  for (int i = 0; i < 17; ++i) start(Hanging());
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().refused() == 4; }));

  const auto began = Clock::now();
  constexpr std::size_t kFlood = 500;
  for (std::size_t i = 0; i < kFlood; ++i) EXPECT_EQ(Compile(small_, Fresh()).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const double took = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
  start(shared);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().joined() == 1; })) << "what is under way is not refused";
  EXPECT_TRUE(daemon_->Eventually([&] { return Compile(small_, stored).ok(); })) << "what is in the store is found by and by";

  EXPECT_EQ(daemon_->Stop(), 0);
  EXPECT_GE(daemon_->LinesWith({"event=request", "reason=\"queue-full\""}), kFlood);
  const std::size_t read = daemon_->LinesWith({"event=request", "reason=\"queue-full\"", "decode_ms="});
  EXPECT_LE(static_cast<double>(read), took / 10 + 10) << "in " << took << " ms";
}

TEST_F(TenantTest, AFloodDoesNotStarveAnother) {
  daemon_->Start({"--queue=52"});  // of which the flood leaves a fifth: room for eight
  // No more of them than it takes: who shares a processor with hundreds cannot keep eight requests under way.
  Callers flood(48, [&](unsigned, unsigned) { CompileAs(flood_); });
  ASSERT_TRUE(daemon_->Eventually([&] { return flood_.refused > 0; })) << "it is a flood";
  Callers small(8, [&](unsigned, unsigned) { CompileAs(small_); });
  ASSERT_TRUE(daemon_->Eventually([&] { return small_.done > 4; }));
  const unsigned flood_before = flood_.done;
  const unsigned small_before = small_.done;
  ASSERT_TRUE(daemon_->Eventually([&] { return small_.done + flood_.done > small_before + flood_before + 300; }, std::chrono::seconds(60)));
  const double its = small_.done - small_before;
  const double theirs = flood_.done - flood_before;
  EXPECT_GE(its, 0.8 * (its + theirs) / 2);
  EXPECT_EQ(small_.refused, 0u);
  std::printf("%.0f %% of its fair share under the flood\n", 100 * its / ((its + theirs) / 2));
}

}  // namespace
}  // namespace kiln::server::testing
