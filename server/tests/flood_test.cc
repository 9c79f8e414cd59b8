// SPDX-License-Identifier: Apache-2.0
//
// One tenant's floods on kilnd's own threads: of lookups, for which it needs no more than the scope read, and of large modules. They neither
// fill the queue for others nor make them wait behind what they want.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/access/tokens.h"
#include "server/testing/held_fixture.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

class FloodTest : public HeldTest {
 protected:
  static constexpr std::size_t kQueue = 200;

  struct Lookup {
    ~Lookup() {
      context.TryCancel();
      ended.wait(false);
    }
    grpc::ClientContext context;
    v1::LookupRequest request;
    v1::CompileReply reply;
    grpc::Status status;
    std::atomic<bool> ended = false;
  };
  using Lookups = std::vector<std::unique_ptr<Lookup>>;

  void SetUp() override {
    HeldTest::SetUp();
    fs::create_directories(daemon_->State());
    std::vector<Token> tokens;
    for (std::string* secret : {&flood_, &small_}) {
      *secret = NewSecret();
      const std::string name = secret == &flood_ ? "flood" : "small";
      tokens.push_back({name, name, *ParseScopes("read,compile"), HashToken(*secret), std::nullopt});
    }
    ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", tokens));
    StartHeld({"--request-queue=" + std::to_string(kQueue)});
  }
  // From here on whatever else comes waits for a thread.
  void HoldAllThreads() {
    for (uint32_t i = 0; i < kExecutorThreads; ++i) {
      threads_.emplace_back([this, i] { EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok()); });
    }
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() >= kExecutorThreads && Waits(); }));
    before_ = daemon_->Stats().requests();
  }
  // Whether a lookup gets no thread.
  bool Waits() {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + flood_);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    v1::LookupRequest request;
    request.set_key(std::string(32, '?'));
    v1::CompileReply reply;
    return daemon_->stub().Lookup(&context, request, &reply).error_code() == StatusCode::DEADLINE_EXCEEDED;
  }
  void TearDown() override {
    GoOn();
    threads_.clear();
    HeldTest::TearDown();
  }

  // So many at one time, for keys that nothing is known under: the store is asked for each.
  Lookups Send(const std::string& secret, std::size_t count) {
    Lookups lookups;
    for (std::size_t i = 0; i < count; ++i) {
      Lookup& lookup = *lookups.emplace_back(std::make_unique<Lookup>());
      lookup.context.AddMetadata("authorization", "Bearer " + secret);
      lookup.request.set_key(std::string(32, static_cast<char>(i)));
      daemon_->stub().async()->Lookup(&lookup.context, &lookup.request, &lookup.reply, [&lookup](grpc::Status status) {
        lookup.status = std::move(status);
        lookup.ended = true;
        lookup.ended.notify_all();
      });
    }
    return lookups;
  }

  static std::size_t Ended(const Lookups& lookups) {
    return static_cast<std::size_t>(std::ranges::count_if(lookups, [](const auto& one) { return one->ended.load(); }));
  }
  bool AllEnd(const Lookups& lookups) {
    return daemon_->Eventually([&] { return Ended(lookups) == lookups.size(); }, std::chrono::seconds(60));
  }

  std::string flood_, small_;
  std::uint64_t before_ = 0;           // requests that came to hold the threads
  std::atomic<int> ended_ = 0;         // large modules
  std::vector<std::jthread> threads_;  // which end once the daemon goes on
};

TEST_F(FloodTest, OfLookupsLeavesRoomToOthers) {
  constexpr std::size_t kAccepted = kQueue * 4 / 5;  // or fewer by those compiles that no thread has taken yet
  HoldAllThreads();
  const Lookups flood = Send(flood_, 2 * kQueue);
  const auto come = [&](std::size_t lookups) { return daemon_->Eventually([&] { return daemon_->Stats().requests() == before_ + lookups; }); };
  ASSERT_TRUE(come(flood.size()));
  ASSERT_TRUE(daemon_->Eventually([&] { return Ended(flood) >= flood.size() - kAccepted; }));
  const Lookups small = Send(small_, kQueue / 10);
  ASSERT_TRUE(come(flood.size() + small.size()));
  EXPECT_EQ(Ended(small), 0u) << small.front()->status.error_message();
  EXPECT_LE(Ended(flood), flood.size() - kAccepted + kExecutorThreads);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().refused() == Ended(flood); })) << "a client hears of it later than it is counted";
  GoOn();
  ASSERT_TRUE(AllEnd(small) && AllEnd(flood));
  for (const auto& lookup : small) EXPECT_EQ(lookup->status.error_code(), StatusCode::NOT_FOUND) << lookup->status.error_message();
  for (const auto& lookup : flood) {
    if (lookup->status.error_code() == StatusCode::NOT_FOUND) continue;
    EXPECT_EQ(lookup->status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << lookup->status.error_message();
    EXPECT_NE(lookup->status.error_details().find("google.rpc.RetryInfo"), std::string::npos);
  }
}

// More than what shares its threads with small requests takes in memory.
v1::CompileRequest Large(int which) {
  v1::Module module;
  module.ParseFromString(MinimalModule());
  const v1::Expr one = module.exprs(0);
  for (int i = 0; i < 100'000; ++i) *module.add_exprs() = one;
  module.mutable_exprs(0)->set_int_value(which);
  auto request = MakeRequest(Order::kAnswer);
  request.set_module(module.SerializeAsString());
  return request;
}

TEST_F(FloodTest, OfLargeModulesLeavesThreadsToOthers) {
  constexpr int kModules = 2 * kExecutorThreads;
  for (int i = 0; i < kModules; ++i) {
    threads_.emplace_back([this, i] {
      grpc::ClientContext context;
      context.AddMetadata("authorization", "Bearer " + flood_);
      v1::CompileReply reply;
      const grpc::Status status = daemon_->stub().Compile(&context, Large(i), &reply);
      EXPECT_TRUE(status.ok()) << status.error_message();
      ++ended_;
    });
  }
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() == kModules; }));
  for (int i = 0; i < 50; ++i) {  // a while, in which the modules come to be decoded, and are held there
    const Lookups small = Send(small_, 1);
    ASSERT_TRUE(AllEnd(small));
    EXPECT_EQ(small[0]->status.error_code(), StatusCode::NOT_FOUND) << small[0]->status.error_message();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // paces the lookups
  }
  EXPECT_EQ(ended_, 0);
}

}  // namespace
}  // namespace kiln::server::testing
