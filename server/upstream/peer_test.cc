// SPDX-License-Identifier: Apache-2.0
//
// Peer and its tier against a server of this process that answers, waits or refuses as it is told.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "cache/testing/watched_clock.h"
#include "kiln/v1/service.grpc.pb.h"
#include "server/system/system_clock.h"
#include "server/upstream/peer.h"
#include "server/upstream/upstream_tier.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 3000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));  // between looks
  return condition();
}

class OtherKilnd final : public v1::Kiln::Service {
 public:
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request, v1::FetchReply* reply) override {
    ++fetches;
    Wait(*context);
    if (!Knows(*context)) return {grpc::StatusCode::UNAUTHENTICATED, "no such token"};
    if (refuses) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "busy"};
    const auto key = cache::Digest::FromBytes(request->entry());
    if (!key || *key != cache::testing::KeyOf(1)) return {grpc::StatusCode::NOT_FOUND, "nothing"};
    reply->set_sealed(std::string(cache::testing::NumberedEntry(1).sealed()));
    return grpc::Status::OK;
  }
  grpc::Status Capabilities(grpc::ServerContext* context, const v1::CapabilitiesRequest* request, v1::CapabilitiesReply* reply) override {
    at_once = at_once && request->at_once();
    ++describes;
    if (asks_who && !Knows(*context)) return {grpc::StatusCode::UNAUTHENTICATED, "no such token"};
    reply->set_compiler("build");
    if (++asked > 2) reply->add_passes("verify");
    reply->set_ptxas(std::to_string(asked > 2 ? ptxas.load() : 0));
    return grpc::Status::OK;
  }
  grpc::Status Compile(grpc::ServerContext* context, const v1::CompileRequest* request, v1::CompileReply* reply) override {
    {
      const std::lock_guard lock(mutex);
      const auto sent = context->client_metadata().find(kViaHeader);
      if (sent != context->client_metadata().end()) via.assign(sent->second.data(), sent->second.size());
    }
    ++compiling;
    Wait(*context);
    --compiling;
    if (context->IsCancelled()) ++cancelled;
    reply->set_key(request->module());
    return grpc::Status::OK;
  }

  void Wait(const grpc::ServerContext& context) const {
    while (holds && !context.IsCancelled()) std::this_thread::sleep_for(milliseconds(2));  // between looks
  }
  bool Knows(const grpc::ServerContext& context) const {
    const auto sent = context.client_metadata().find("authorization");
    return sent == context.client_metadata().end() || sent->second == "Bearer right";
  }

  std::atomic<bool> holds = false, refuses = false, asks_who = false, at_once = true;
  std::atomic<int> asked = 0, describes = 0, ptxas = 1, fetches = 0, compiling = 0, cancelled = 0;
  std::mutex mutex;
  std::string via;
};

class PeerTest : public ::testing::Test {
 protected:
  PeerTest() {
    StartServer();
    peer = std::make_shared<Peer>(
        Peer::Options{.address = address, .timeout = kTimeout, .on_event = [this](bool good, std::string_view what) { Note(good, what); }},
        ChannelTo({.address = address, .tls = false}), clock);
  }
  ~PeerTest() override {
    other.holds = false;
    peer->Close();
    server->Shutdown(std::chrono::system_clock::now());
  }

  void StartServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&other);
    server = builder.BuildAndStart();
    ASSERT_TRUE(server);
  }
  void Begin() {
    peer->Begin();
    ASSERT_TRUE(Eventually([&] { return peer->available() && peer->description(); }));
  }
  // The keeper is woken until it has gone through all that may be due. Each time it reads the clock at least twice, and, with two tenants, no more
  // than seven times.
  bool KeeperLooks() {
    return Eventually([&, before = clock.looks()] {
      peer->LookAgain();
      return clock.looks() > before + 20;
    });
  }
  void Note(bool good, std::string_view what) {
    const std::lock_guard lock(mutex);
    events += std::string(good ? "+ " : "- ") + std::string(what) + "\n";
  }
  std::string Events() {
    const std::lock_guard lock(mutex);
    return events;
  }
  std::future<grpc::Status> Compile(std::stop_token stop, std::string tenant = "default") {
    auto promise = std::make_shared<std::promise<grpc::Status>>();
    auto future = promise->get_future();
    v1::CompileRequest request;
    request.set_module("module");
    peer->Start({"Compile", std::move(tenant), "0123456789abcdef", request.SerializeAsString(), std::chrono::minutes(1)}, std::move(stop),
                [this, promise](std::shared_ptr<Peer::Answer> answer) {
                  const std::lock_guard lock(mutex);
                  promise->set_value(answer->status);
                  answers.push_back(std::move(answer));  // let go of on another thread
                });
    return future;
  }

  static constexpr milliseconds kTimeout{500};
  const cache::testing::TemporaryDirectory folder{"/tmp/"};
  const std::string address = "unix:" + (folder / "socket").string();
  const SystemClock system;  // gRPC's deadlines are of its time
  cache::testing::WatchedClock clock{system};
  OtherKilnd other;
  std::unique_ptr<grpc::Server> server;
  std::mutex mutex;
  std::string events;
  std::vector<std::shared_ptr<Peer::Answer>> answers;
  std::shared_ptr<Peer> peer;
};

TEST_F(PeerTest, FetchesForWhomeverAsks) {
  Begin();
  UpstreamTier tier(peer);
  cache::Waited waited{.asker = "default"};
  const auto found = tier.GetWithin(cache::testing::KeyOf(1), waited);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->digest(), cache::testing::NumberedEntry(1).digest());
  EXPECT_GT(waited.time.count(), 0);
  EXPECT_FALSE(*tier.GetWithin(cache::testing::KeyOf(2), waited));
  const int fetches = other.fetches;
  for (const char* nobody : {"", "team-a"}) {
    cache::Waited without{.asker = nobody};
    EXPECT_FALSE(*tier.GetWithin(cache::testing::KeyOf(1), without)) << "without a token nobody is asked";
  }
  cache::Waited late{.time = kTimeout, .asker = "default"};
  EXPECT_FALSE(*tier.GetWithin(cache::testing::KeyOf(1), late)) << "no time is left";
  EXPECT_EQ(other.fetches, fetches);
  EXPECT_EQ(tier.Stats().hits, 1u);
}

TEST_F(PeerTest, OneWhoIsSlowIsLeftAloneUntilAProbeIsAnswered) {
  Begin();
  other.holds = true;
  cache::Waited waited{.asker = "default"};
  const auto began = clock.SteadyNow();
  const auto found = peer->Fetch(cache::testing::KeyOf(1), waited);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, cache::ErrorCode::kUnreachable);
  EXPECT_THAT(found.error().message, HasSubstr("within 500 ms"));
  EXPECT_LT(clock.SteadyNow() - began, 4 * kTimeout);
  EXPECT_FALSE(peer->available());
  cache::Waited fresh{.asker = "default"};
  EXPECT_FALSE(*peer->Fetch(cache::testing::KeyOf(1), fresh));
  EXPECT_EQ(fresh.time.count(), 0) << "nobody waits for it now";
  other.holds = false;
  EXPECT_TRUE(Eventually([&] { return peer->available(); }));
  EXPECT_TRUE(*peer->Fetch(cache::testing::KeyOf(1), fresh));
  EXPECT_TRUE(Eventually([&] { return Events().ends_with("+ it answers again\n"); })) << Events();
}

TEST_F(PeerTest, WhoHasWaitedBeforeBlamesNobody) {
  Begin();
  other.holds = true;
  cache::Waited waited{.time = kTimeout - milliseconds(50), .asker = "default"};
  const auto found = peer->Fetch(cache::testing::KeyOf(1), waited);
  EXPECT_FALSE(found);
  EXPECT_TRUE(peer->available());
}

TEST_F(PeerTest, WhatItIsIsAskedAgainWhereThatMatters) {
  Begin();
  EXPECT_EQ(peer->description()->ptxas(), "1") << "not before it knows itself";
  other.ptxas = 2;
  peer->LookAgain();
  EXPECT_TRUE(Eventually([&] { return peer->description()->ptxas() == "2"; }));
  EXPECT_TRUE(other.at_once) << "nobody waits for its drivers";
}

// Each wrong token is tried once, and no sooner again than its tenant may ask again. The right one is, at once.
TEST_F(PeerTest, WrongTokensAreNotTriedAgainAndAgain) {
  other.asks_who = true;
  peer->UseTokens({{"team-a", "wrong"}, {"team-b", "wrong as well"}});
  peer->Begin();
  EXPECT_TRUE(Eventually([&] { return other.describes >= 2; }));
  ASSERT_TRUE(KeeperLooks());
  EXPECT_EQ(other.describes, 2);
  EXPECT_TRUE(peer->available()) << "it answers";
  clock.Advance(milliseconds(1'500));
  ASSERT_TRUE(KeeperLooks());
  EXPECT_EQ(other.describes, 2) << "they are still shut out";
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(KeeperLooks());
  EXPECT_EQ(other.describes, 4) << "each once more";
  const auto began = clock.SteadyNow();
  peer->UseTokens({{"team-a", "wrong"}, {"team-c", "right"}});
  EXPECT_TRUE(Eventually([&] { return peer->description().has_value(); }));
  EXPECT_LT(clock.SteadyNow() - began, std::chrono::seconds(5));
}

TEST_F(PeerTest, ABusyOneIsAMissAndNoTrouble) {
  Begin();
  other.refuses = true;
  cache::Waited waited{.asker = "default"};
  EXPECT_EQ(peer->Fetch(cache::testing::KeyOf(1), waited).error().code, cache::ErrorCode::kOverloaded);
  EXPECT_TRUE(peer->available());
}

TEST_F(PeerTest, ATokenThatIsRefusedConcernsItsTenantAlone) {
  peer->UseTokens({{"team-a", "wrong"}, {"team-b", "right"}});
  Begin();
  cache::Waited waited{.asker = "team-a"};
  EXPECT_EQ(peer->Fetch(cache::testing::KeyOf(1), waited).error().code, cache::ErrorCode::kRefused);
  const int fetches = other.fetches;
  EXPECT_FALSE(*peer->Fetch(cache::testing::KeyOf(1), waited));
  EXPECT_EQ(other.fetches, fetches) << "for a while nobody is asked for it";
  cache::Waited of_another{.asker = "team-b"};
  EXPECT_TRUE(*peer->Fetch(cache::testing::KeyOf(1), of_another));
  EXPECT_THAT(Events(), HasSubstr("does not serve the tenant team-a: no such token"));
  peer->UseTokens({{"team-a", "right"}});
  EXPECT_TRUE(*peer->Fetch(cache::testing::KeyOf(1), waited));
}

TEST_F(PeerTest, ACompileBearsTheNamesOfThoseItCameThrough) {
  Begin();
  const grpc::Status status = Compile({}).get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(other.via, "0123456789abcdef," + peer->name());
  EXPECT_EQ(Compile({}, "team-a").get().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(PeerTest, ACompileThatNobodyWaitsForIsCancelledThere) {
  Begin();
  other.holds = true;
  std::stop_source stop;
  auto status = Compile(stop.get_token());
  ASSERT_TRUE(Eventually([&] { return other.compiling == 1; }));
  stop.request_stop();
  EXPECT_EQ(status.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return other.cancelled == 1; }));
  EXPECT_EQ(Compile(stop.get_token()).get().error_code(), grpc::StatusCode::CANCELLED) << "nor is one begun";
}

TEST_F(PeerTest, ClosingEndsWhatIsUnderWay) {
  Begin();
  other.holds = true;
  std::vector<std::future<grpc::Status>> all;
  for (int i = 0; i < 8; ++i) all.push_back(Compile({}));
  ASSERT_TRUE(Eventually([&] { return other.compiling > 0; }));
  peer->Close();
  peer->AwaitIdle();
  for (auto& one : all) EXPECT_EQ(one.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(Compile({}).get().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(PeerTest, CallsThatEndWhileTheyAreCancelled) {
  Begin();
  std::vector<std::jthread> threads;
  std::atomic<int> ended = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        std::stop_source stop;
        auto status = Compile(stop.get_token());
        if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(37 * ((i + t) % 20)));  // paces the stops
        stop.request_stop();
        const auto code = status.get().error_code();
        ended += code == grpc::StatusCode::OK || code == grpc::StatusCode::CANCELLED;
        std::vector<std::shared_ptr<Peer::Answer>> done;  // let go of without the mutex, which other answers may need meanwhile
        const std::lock_guard lock(mutex);
        done.swap(answers);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(ended, 400);
}

TEST_F(PeerTest, OneThatGoesAndComesBackIsUsedAgain) {
  Begin();
  server->Shutdown(std::chrono::system_clock::now());
  server.reset();
  cache::Waited waited{.asker = "default"};
  EXPECT_FALSE(peer->Fetch(cache::testing::KeyOf(1), waited));
  EXPECT_FALSE(peer->available());
  EXPECT_EQ(Compile({}).get().error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(Eventually([&] { return !peer->trouble().empty(); }));
  StartServer();
  EXPECT_TRUE(Eventually([&] { return peer->available(); })) << peer->trouble();
}

}  // namespace
}  // namespace kiln::server
