// SPDX-License-Identifier: Apache-2.0
//
// Servers that lie, that answer slowly, and that send us to others.
#include <sys/resource.h>

#include "cache/redis/redis_leases.h"
#include "cache/redis/tests/lying_test_server.h"
#include "cache/redis/tests/redis_test_servers.h"

namespace kiln::cache::redis {
namespace {

using cache::testing::KeyOf;
using cache::testing::NumberedEntry;
using testing::LyingServer;
using Words = std::vector<std::string>;
using End = Leases::End;

constexpr std::chrono::milliseconds kTimeout{50};  // of a Cluster, if nothing else is said
constexpr std::chrono::milliseconds kSlack{60};    // of a machine that does other things

class HostileTest : public ::testing::Test {
 protected:
  void ConnectTo(const LyingServer& server, Cluster::Options options = {}) {
    options.servers = {server.at()};
    cluster_ = std::make_shared<Cluster>(std::move(options), clock_);
    table_ = std::make_shared<LeaseTable>();
    tier_ = std::make_shared<RedisTier>(RedisTier::Options{.queue = {.expiry = std::chrono::hours(1)}}, cluster_, table_);
    ASSERT_TRUE(cluster_->AwaitAvailable(std::chrono::seconds(10)));
  }
  std::chrono::milliseconds Since(SteadyTime began) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.SteadyNow() - began);
  }

  const testing::RealClock clock_;
  std::shared_ptr<Cluster> cluster_;
  std::shared_ptr<LeaseTable> table_;
  std::shared_ptr<RedisTier> tier_;
};

std::optional<std::string> If(const Words& words, std::string_view command, std::string answer) {
  return words[0] == command ? std::optional(std::move(answer)) : std::nullopt;
}

// Only what has come takes memory, and of that no more than a reply may have.
TEST_F(HostileTest, AReplyOfTwoGigabytesTakesLittleMemory) {
  const auto peak = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  const LyingServer server([](const Words& words) -> std::optional<std::string> {
    if (words[0] != "HMGET") return std::nullopt;
    return "*2\r\n$2147483647\r\n" + std::string(std::size_t{24} << 20, 'x');
  });
  Cluster::Options options;
  options.max_reply = std::size_t{2} << 20;
  options.timeout = std::chrono::seconds(5);
  ConnectTo(server, std::move(options));
  const long before = peak();
  const auto found = tier_->Get(KeyOf(1));
  ASSERT_FALSE(found);
  EXPECT_TRUE(found.error().message.contains("bytes")) << found.error().message;
  EXPECT_LT(peak() - before, 500'000) << "a sanitizer takes several times what it watches, and the server has 24 MiB itself";
}

TEST_F(HostileTest, GarbageIsNeverMoreThanAMiss) {
  for (const char* garbage :
       {"*2\r\n:1\r\n:2\r\n", "*2\r\n*0\r\n*0\r\n", "*-1\r\n", ":7\r\n", "+OK\r\n", "-MOVED\r\n", "-MOVED \r\n", "-MOVED 1 x\r\n", "-MOVED 1 :0\r\n",
        "-MOVED 1 [::1\r\n", "-ASK 1 a/b:6379\r\n", "-ASK 99999999999 127.0.0.1:99999\r\n", "-\r\n", "$x\r\n"}) {
    const LyingServer server([&](const Words& words) { return If(words, "HMGET", garbage); });
    ConnectTo(server);
    const auto found = tier_->Get(KeyOf(1));
    EXPECT_TRUE(!found || !*found) << garbage;
  }
}

TEST_F(HostileTest, AnErrorIsALine) {
  const LyingServer server([](const Words& words) { return If(words, "HMGET", "-ERR " + std::string(1 << 20, 'x') + "\r\n"); });
  ConnectTo(server);
  const auto found = tier_->Get(KeyOf(1));
  ASSERT_FALSE(found);
  EXPECT_LT(found.error().message.size(), 1'000u) << "it goes into logs";
}

// What nobody asked for would be taken for the answer to the next command.
TEST_F(HostileTest, WhatComesBehindAReplyIsNoReply) {
  const LyingServer server([](const Words& words) { return If(words, "HMGET", "*2\r\n$-1\r\n$-1\r\n*2\r\n$1\r\nx\r\n$1\r\ny\r\n"); });
  ConnectTo(server);
  for (int i = 0; i < 5; ++i) {
    const auto found = tier_->Get(KeyOf(i));
    EXPECT_TRUE(found && !*found) << i;
  }
}

// A server that answers sends us to one that does not.
TEST_F(HostileTest, NobodyIsSentToAServerThatIsLeftAlone) {
  const LyingServer stalled([](const Words&) { return std::string(); });
  const std::string moved = "-MOVED 1 " + stalled.at().ToText() + "\r\n", ask = "-ASK 1 " + stalled.at().ToText() + "\r\n";
  for (const std::string& sent : {moved, ask}) {
    const LyingServer server([&](const Words& words) { return If(words, "HMGET", sent); });
    ConnectTo(server);
    SteadyTime::duration waited{0};
    for (int i = 0; i < 40; ++i) {
      const SteadyTime began = clock_.SteadyNow();
      EXPECT_FALSE(tier_->Get(KeyOf(i)));
      waited += clock_.SteadyNow() - began;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // paces the requests, so that probes come between them
    }
    EXPECT_LT(waited, 15 * kTimeout) << sent << "the first waits, and few others; all of them would wait 40 times as long";
  }
}

TEST_F(HostileTest, ServersThatAreNamedAreCounted) {
  std::atomic<int> named = 0;
  const LyingServer server([&](const Words& words) -> std::optional<std::string> {
    if (words[0] == "HMGET") return "-ASK 1 127.1.0.1:" + std::to_string(1024 + ++named) + "\r\n";
    return std::nullopt;
  });
  ConnectTo(server);
  for (int i = 0; i < 3'000; ++i) EXPECT_FALSE(tier_->Get(KeyOf(i)));
  EXPECT_LE(cluster_->servers(), 2 * kMostServers);
}

class HostileLeasesTest : public HostileTest {
 protected:
  End EndOf(const std::string& answer, bool even_if_there) {
    const LyingServer server([&](const Words& words) { return If(words, "EVAL", answer); });
    ConnectTo(server);
    RedisLeases leases(cluster_, table_, tier_);
    Waited waited;
    return leases.Take(KeyOf(1), even_if_there, waited).end;
  }
};

TEST_F(HostileLeasesTest, WhatIsNoAnswerIsNoLease) {
  EXPECT_EQ(EndOf("*1\r\n:0\r\n", false), End::kThere);
  EXPECT_EQ(EndOf("*1\r\n:0\r\n", true), End::kNone) << "it would be looked for in vain again and again";
  EXPECT_EQ(EndOf("*2\r\n:1\r\n:7\r\n", true), End::kMine);
  EXPECT_EQ(EndOf("*2\r\n:2\r\n:700\r\n", true), End::kOthers);
  for (const char* wrong : {"*1\r\n$1\r\nx\r\n", "*1\r\n*0\r\n", "*1\r\n$-1\r\n", "*2\r\n:1\r\n$1\r\nx\r\n", "*2\r\n:1\r\n:-7\r\n",
                            "*2\r\n:1\r\n:0\r\n", "*2\r\n:2\r\n$1\r\nx\r\n", "*2\r\n:2\r\n:-1\r\n", "*2\r\n:2\r\n:99999999\r\n", "*1\r\n:2\r\n",
                            "*1\r\n:1\r\n", "*2\r\n:3\r\n:1\r\n", "*0\r\n", ":0\r\n", "+OK\r\n", "$-1\r\n", "-ERR no\r\n"}) {
    EXPECT_EQ(EndOf(wrong, false), End::kNone) << wrong;
  }
}

// However often a lease is renewed that nobody holds.
TEST_F(HostileLeasesTest, NobodyWaitsForEver) {
  const LyingServer server([](const Words& words) { return If(words, "PTTL", ":2000\r\n"); });
  ConnectTo(server);
  RedisLeases leases(cluster_, table_, tier_);
  const SteadyTime began = clock_.SteadyNow();
  std::atomic<bool> woken = false;
  leases.Await(leases.NewWait(), KeyOf(1), std::chrono::milliseconds(2'000), began + std::chrono::milliseconds(400), [&] { woken = true; });
  EXPECT_TRUE(testing::Eventually([&] { return woken.load(); }, std::chrono::seconds(3)));
  EXPECT_LT(Since(began), std::chrono::milliseconds(400) + 4 * kSlack);
  EXPECT_GE(Since(began), std::chrono::milliseconds(350));
}

class SlowServerTest : public HostileTest {
 protected:
  static constexpr std::chrono::milliseconds kLate{30};
  std::optional<std::string> Late(const Words& words) {
    if (words[0] != "HMGET" && words[0] != "EVAL") return std::nullopt;
    ++asked_;
    std::this_thread::sleep_for(kLate);  // late, as its name says
    return std::nullopt;
  }

  std::atomic<int> asked_ = 0;
};

// Each answer comes in time; all of them together do not.
TEST_F(SlowServerTest, ARequestThatAsksSeveralTimesWaitsNoLongerThanOnce) {
  const LyingServer server([this](const Words& words) { return Late(words); });
  ConnectTo(server);
  RedisLeases leases(cluster_, table_, tier_);
  Waited waited;
  for (int i = 0; i < 4; ++i) {
    const auto found = tier_->GetWithin(KeyOf(i), waited);
    EXPECT_TRUE(!found || !*found);
  }
  EXPECT_EQ(leases.Take(KeyOf(1), false, waited).end, End::kNone);
  EXPECT_LE(asked_, 2) << "four answers and a lease take longer than the request has";
  EXPECT_GE(waited.time, kTimeout);
  EXPECT_TRUE(tier_->available()) << "a server is not left alone because a request was in a hurry";
  const auto found = tier_->Get(KeyOf(9));
  EXPECT_TRUE(found && !*found) << "another request has its own time";
}

}  // namespace
}  // namespace kiln::cache::redis
