// SPDX-License-Identifier: Apache-2.0
//
// A flood of one tenant's lookups, for which it needs no more than the scope read: it neither fills kilnd's queue for others nor makes
// them wait behind it.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/testing/held_fixture.h"
#include "server/tokens.h"

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
      tokens.push_back({name, name, *ParseScopes("read"), HashToken(*secret), std::nullopt});
    }
    ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", tokens));
    StartHeld({"--request-queue=" + std::to_string(kQueue)});
    for (uint32_t i = 0; i < kExecutorThreads; ++i) {
      threads_.emplace_back([this, i] { EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok()); });
    }
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() == kExecutorThreads; }));
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

 private:
  std::vector<std::jthread> threads_;
};

TEST_F(FloodTest, OfLookupsLeavesRoomToOthers) {
  constexpr std::size_t kAccepted = kQueue * 4 / 5;  // or fewer by those compiles that no thread has taken yet
  const Lookups flood = Send(flood_, 2 * kQueue);
  const auto come = [&](std::size_t lookups) {
    return daemon_->Eventually([&] { return daemon_->Stats().requests() == kExecutorThreads + lookups; });
  };
  ASSERT_TRUE(come(flood.size()));
  ASSERT_TRUE(daemon_->Eventually([&] { return Ended(flood) >= flood.size() - kAccepted; }));
  const Lookups small = Send(small_, kQueue / 10);
  ASSERT_TRUE(come(flood.size() + small.size()));
  EXPECT_EQ(Ended(small), 0u) << small.front()->status.error_message();
  EXPECT_LE(Ended(flood), flood.size() - kAccepted + kExecutorThreads);
  EXPECT_EQ(daemon_->Stats().refused(), Ended(flood));
  GoOn();
  ASSERT_TRUE(AllEnd(small) && AllEnd(flood));
  for (const auto& lookup : small) EXPECT_EQ(lookup->status.error_code(), StatusCode::NOT_FOUND) << lookup->status.error_message();
  for (const auto& lookup : flood) {
    if (lookup->status.error_code() == StatusCode::NOT_FOUND) continue;
    EXPECT_EQ(lookup->status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << lookup->status.error_message();
    EXPECT_NE(lookup->status.error_details().find("google.rpc.RetryInfo"), std::string::npos);
  }
}

}  // namespace
}  // namespace kiln::server::testing
