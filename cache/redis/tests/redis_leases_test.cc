// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/redis_leases.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cache/redis/names.h"
#include "cache/redis/tests/redis_test_servers.h"
#include "cache/testing/watched_clock.h"

namespace kiln::cache::redis {
namespace {

using cache::testing::KeyOf;
using cache::testing::MakeEntry;
using cache::testing::NumberedEntry;
using testing::Eventually;
using testing::Server;
using End = Leases::End;

// One process of those that share a store.
struct Host {
  Host(const std::vector<HostPort>& servers, const Clock& clock)
      : cluster(std::make_shared<Cluster>(Cluster::Options{.servers = servers, .timeout = std::chrono::milliseconds(500)}, clock)),
        table(std::make_shared<LeaseTable>()),
        tier(std::make_shared<RedisTier>(RedisTier::Options{.queue = {.expiry = std::chrono::hours(1)}}, cluster, table)),
        leases(std::make_unique<RedisLeases>(cluster, table, tier)) {
    EXPECT_TRUE(cluster->AwaitAvailable(std::chrono::seconds(10)));
  }

  std::string Blob(int number) const {
    const auto found = tier->Get(KeyOf(number));
    return found && *found ? std::string((*found)->blob("ptx")) : "none";
  }

  std::shared_ptr<Cluster> cluster;
  std::shared_ptr<LeaseTable> table;
  std::shared_ptr<RedisTier> tier;
  std::unique_ptr<RedisLeases> leases;
};

Leases::Taken Take(Host& host, const Digest& key, bool even_if_there) {
  Waited waited;
  return host.leases->Take(key, even_if_there, waited);
}

class RedisLeasesTest : public ::testing::Test {
 protected:
  // How long it takes until who waits is woken; nothing: longer than 10 s.
  std::optional<std::chrono::milliseconds> TimeUntilWoken(Host& host, int number, std::chrono::milliseconds left, const std::function<void()>& then) {
    const auto woken = std::make_shared<std::atomic<bool>>(false);
    const SteadyTime began = clock_.SteadyNow();
    host.leases->Await(host.leases->NewWait(), KeyOf(number), left, began + std::chrono::minutes(1), [woken] { *woken = true; });
    then();
    if (!Eventually([&] { return woken->load(); }, std::chrono::seconds(10))) return std::nullopt;
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.SteadyNow() - began);
  }

  // Its listener looks what is due by its clock.
  static void WakeListener(Host& host) {
    const std::uint64_t wait = host.leases->NewWait();
    host.leases->Await(wait, KeyOf(1000), std::chrono::hours(1), SteadyTime::max(), [] {});
    host.leases->Leave(wait);
  }
  // Whoever waits for that key is told of its end from now on.
  template <class Servers>
  static bool IsListenedTo(const Servers& servers, int number) {
    return Eventually([&] {
      return std::ranges::any_of(servers, [&](const Server* server) {
        const auto reply = server->Ask({"PUBSUB", "NUMSUB", Names(KeyOf(number)).channel});
        return reply && reply->items.size() == 2 && reply->items[1].integer > 0;
      });
    });
  }

  const testing::RealClock clock_;
};

TEST_F(RedisLeasesTest, OneHostMakesIt) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host one({server.at()}, clock_), other({server.at()}, clock_);
  const auto mine = Take(one, KeyOf(1), false);
  ASSERT_EQ(mine.end, End::kMine);
  const auto theirs = Take(other, KeyOf(1), false);
  EXPECT_EQ(theirs.end, End::kOthers);
  EXPECT_GT(theirs.left.count(), 2'000);
  EXPECT_EQ(Take(other, KeyOf(2), false).end, End::kMine) << "each key has its own";
  const auto took = TimeUntilWoken(other, 1, theirs.left, [&] {
    EXPECT_TRUE(IsListenedTo(std::array{&server}, 1));
    one.tier->Put(NumberedEntry(1));
    one.leases->Release(KeyOf(1), mine.token);
  });
  ASSERT_TRUE(took);
  EXPECT_LT(took->count(), 1'500) << "it is told, and does not wait for the lease to expire";
  EXPECT_EQ(Take(other, KeyOf(1), false).end, End::kThere);
  EXPECT_EQ(Take(other, KeyOf(1), true).end, End::kMine) << "what is there is of no use to it";
}

TEST_F(RedisLeasesTest, WhoGivesUpIsReplacedAtOnce) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host one({server.at()}, clock_), other({server.at()}, clock_);
  const auto mine = Take(one, KeyOf(1), false);
  const auto theirs = Take(other, KeyOf(1), false);
  const auto took = TimeUntilWoken(other, 1, theirs.left, [&] { one.leases->Release(KeyOf(1), mine.token); });
  ASSERT_TRUE(took);
  EXPECT_LT(took->count(), 1'000);
  EXPECT_EQ(Take(other, KeyOf(1), false).end, End::kMine);
}

// What was told before anybody listened is not told again.
TEST_F(RedisLeasesTest, AnEndBeforeTheWaitIsSeen) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host one({server.at()}, clock_), other({server.at()}, clock_);
  const auto mine = Take(one, KeyOf(1), false);
  const auto theirs = Take(other, KeyOf(1), false);
  one.leases->Release(KeyOf(1), mine.token);
  ASSERT_TRUE(Eventually([&] { return server.Ask({"EXISTS", Names(KeyOf(1)).lease})->integer == 0; }));
  const auto took = TimeUntilWoken(other, 1, theirs.left, [] {});
  ASSERT_TRUE(took);
  EXPECT_LT(took->count(), 1'000);
}

TEST_F(RedisLeasesTest, ALeaseIsRenewedWhileItIsHeld) {
  KILN_NEEDS_REDIS();
  const Server server;
  cache::testing::WatchedClock time(clock_);
  Host one({server.at()}, time), other({server.at()}, clock_);
  const auto mine = Take(one, KeyOf(1), false);
  ASSERT_EQ(mine.end, End::kMine);
  const Names names(KeyOf(1));
  const auto left = [&] { return server.Ask({"PTTL", names.lease})->integer; };
  for (int second = 0; second < 4; ++second) {
    // The server's time is real. So that the lease does not end by itself, and its renewal shows, it has far more of it than a renewal gives.
    ASSERT_EQ(server.Ask({"PEXPIRE", names.lease, "600000"})->integer, 1) << second;
    time.Advance(std::chrono::seconds(1));
    WakeListener(one);
    EXPECT_TRUE(Eventually([&] { return left() <= 2'500; })) << second;
    EXPECT_GT(left(), 0) << second;
    EXPECT_EQ(Take(other, KeyOf(1), false).end, End::kOthers) << second;
  }
  one.leases->Release(KeyOf(1), mine.token);
}

TEST_F(RedisLeasesTest, AnOwnerThatDiesIsReplacedWithinThreeSeconds) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host other({server.at()}, clock_);
  const Names names(KeyOf(1));
  server.Ask({"SET", names.lease, "somebody who renews no more", "PX", "2500"});
  const auto theirs = Take(other, KeyOf(1), false);
  ASSERT_EQ(theirs.end, End::kOthers);
  const auto took = TimeUntilWoken(other, 1, theirs.left, [] {});
  ASSERT_TRUE(took);
  EXPECT_LT(took->count(), 3'000);
  EXPECT_EQ(Take(other, KeyOf(1), false).end, End::kMine);
}

TEST_F(RedisLeasesTest, ALeaseThatNeverEndsIsNone) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host host({server.at()}, clock_);
  server.Ask({"SET", Names(KeyOf(1)).lease, "planted"});
  server.Ask({"SET", Names(KeyOf(2)).lease, "planted", "EX", "86400"});
  EXPECT_EQ(Take(host, KeyOf(1), false).end, End::kNone);
  EXPECT_EQ(Take(host, KeyOf(2), false).end, End::kNone);
}

// One stalls; its lease expires, another makes the result, and then the first comes back with its own.
TEST_F(RedisLeasesTest, WhoStalledOverwritesNothingNewer) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host stalled({server.at()}, clock_), newer({server.at()}, clock_);
  const auto first = Take(stalled, KeyOf(1), false);
  server.Ask({"DEL", Names(KeyOf(1)).lease});  // it has expired
  const auto second = Take(newer, KeyOf(1), false);
  ASSERT_EQ(first.end, End::kMine);
  ASSERT_EQ(second.end, End::kMine);
  ASSERT_TRUE(PutAndWait(*newer.tier, MakeEntry(KeyOf(1), "newer")));
  newer.leases->Release(KeyOf(1), second.token);
  ASSERT_TRUE(PutAndWait(*stalled.tier, MakeEntry(KeyOf(1), "stalled")));
  stalled.leases->Release(KeyOf(1), first.token);
  EXPECT_EQ(newer.Blob(1), "newer");
  ASSERT_TRUE(PutAndWait(*stalled.tier, MakeEntry(KeyOf(1), "without a lease")));
  EXPECT_EQ(newer.Blob(1), "newer");
  // Where the newer owner has nothing yet, the result of the first is better than none.
  const auto third = Take(stalled, KeyOf(2), false);
  server.Ask({"DEL", Names(KeyOf(2)).lease});
  const auto fourth = Take(newer, KeyOf(2), false);
  ASSERT_TRUE(PutAndWait(*stalled.tier, MakeEntry(KeyOf(2), "stalled")));
  EXPECT_EQ(newer.Blob(2), "stalled");
  ASSERT_TRUE(PutAndWait(*newer.tier, MakeEntry(KeyOf(2), "newer")));
  EXPECT_EQ(newer.Blob(2), "newer");
  stalled.leases->Release(KeyOf(2), third.token);
  newer.leases->Release(KeyOf(2), fourth.token);
}

// Servers that are full forget what is used least, so the last fencing number as well.
TEST_F(RedisLeasesTest, WhoStalledOverwritesNothingNewerWhereTheServerForgets) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host stalled({server.at()}, clock_), newer({server.at()}, clock_);
  const Names names(KeyOf(1));
  for (int i = 0; i < 3; ++i) {
    const auto before = Take(stalled, KeyOf(1), true);
    ASSERT_EQ(before.end, End::kMine);
    stalled.leases->Release(KeyOf(1), before.token);
    ASSERT_TRUE(Eventually([&] { return server.Ask({"EXISTS", names.lease})->integer == 0; }));
  }
  const auto first = Take(stalled, KeyOf(1), false);
  server.Ask({"DEL", names.lease, names.fence});
  const auto second = Take(newer, KeyOf(1), false);
  ASSERT_EQ(first.end, End::kMine);
  ASSERT_EQ(second.end, End::kMine);
  ASSERT_TRUE(PutAndWait(*newer.tier, MakeEntry(KeyOf(1), "newer")));
  ASSERT_TRUE(PutAndWait(*stalled.tier, MakeEntry(KeyOf(1), "stalled")));
  EXPECT_EQ(newer.Blob(1), "newer");
  stalled.leases->Release(KeyOf(1), first.token);
  newer.leases->Release(KeyOf(1), second.token);
}

// A refusal has a name of its own, which another server may hold.
TEST_F(RedisLeasesTest, ALeaseEndsAfterWhatWasPutBefore) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Host host(servers.addresses(), clock_);
  const auto server_of = [&](int number) -> Server& { return servers.master_of(Names(KeyOf(number)).slot); };
  int other = 1;
  while (&server_of(other) == &server_of(0)) ++other;
  for (const auto& [leased, refused] : {std::pair(0, other), std::pair(other, 0)}) {
    Leases::Taken mine;
    ASSERT_TRUE(Eventually([&] { return (mine = Take(host, KeyOf(leased), true)).end == End::kMine; })) << "once its server is in use again";
    const Names names(KeyOf(leased));
    server_of(refused).Signal(SIGSTOP);
    host.tier->Put(NumberedEntry(refused));
    host.leases->Release(KeyOf(leased), mine.token);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // real time of a write: that a lease does not end has no event
    EXPECT_EQ(server_of(leased).Ask({"EXISTS", names.lease})->integer, 1) << leased;
    server_of(refused).Signal(SIGCONT);
    EXPECT_TRUE(Eventually([&] { return server_of(leased).Ask({"EXISTS", names.lease})->integer == 0; }));
  }
}

TEST_F(RedisLeasesTest, WhatWasPlantedKeepsNobodyFromPutting) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host host({server.at()}, clock_);
  for (const char* fence : {"99999999999999999999", "nan", "inf", "no number"}) {
    server.Ask({"HSET", Names(KeyOf(1)).entry, "h", "planted", "b", "planted", "f", fence});
    const auto mine = Take(host, KeyOf(1), true);
    ASSERT_EQ(mine.end, End::kMine) << fence;
    ASSERT_TRUE(PutAndWait(*host.tier, MakeEntry(KeyOf(1), fence)));
    EXPECT_EQ(host.Blob(1), fence);
    host.leases->Release(KeyOf(1), mine.token);
  }
}

TEST_F(RedisLeasesTest, AStoreThatIsGoneGivesNone) {
  KILN_NEEDS_REDIS();
  Server server;
  Host one({server.at()}, clock_), other({server.at()}, clock_);
  const auto mine = Take(one, KeyOf(1), false);
  const auto theirs = Take(other, KeyOf(1), false);
  const auto took = TimeUntilWoken(other, 1, theirs.left, [&] {
    EXPECT_TRUE(IsListenedTo(std::array{&std::as_const(server)}, 1));
    server.Kill();
  });
  ASSERT_TRUE(took);
  EXPECT_LT(took->count(), 1'500) << "nobody waits for a dead store";
  EXPECT_TRUE(Eventually([&] { return Take(other, KeyOf(1), false).end == End::kNone; }));
  EXPECT_GT(other.leases->Stats().none, 0u);
  one.leases->Release(KeyOf(1), mine.token);
}

TEST_F(RedisLeasesTest, WhoLeavesIsNotCalledAndCloseWakesTheRest) {
  KILN_NEEDS_REDIS();
  const Server server;
  Host one({server.at()}, clock_), other({server.at()}, clock_);
  const auto mine = Take(one, KeyOf(1), false);
  const auto theirs = Take(other, KeyOf(1), false);
  std::atomic<bool> left_was_called = false, other_was_called = false;
  const std::uint64_t leaves = other.leases->NewWait(), stays = other.leases->NewWait();
  other.leases->Await(leaves, KeyOf(1), theirs.left, SteadyTime::max(), [&] { left_was_called = true; });
  other.leases->Await(stays, KeyOf(1), theirs.left, SteadyTime::max(), [&] { other_was_called = true; });
  EXPECT_TRUE(other.leases->Leave(leaves));
  EXPECT_FALSE(other.leases->Leave(leaves));
  other.leases->Close();
  EXPECT_TRUE(Eventually([&] { return other_was_called.load(); }, std::chrono::milliseconds(500)));
  EXPECT_FALSE(other.leases->Leave(stays));
  EXPECT_FALSE(left_was_called);
  one.leases->Release(KeyOf(1), mine.token);
}

TEST_F(RedisLeasesTest, AClusterHasLeasesToo) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Host one(servers.addresses(), clock_), other(servers.addresses(), clock_);
  std::vector<const Server*> all;
  for (std::size_t i = 0; i < servers.size(); ++i) all.push_back(&servers[i]);
  for (int i = 0; i < 12; ++i) {
    const auto mine = Take(one, KeyOf(i), false);
    ASSERT_EQ(mine.end, End::kMine) << i;
    const auto theirs = Take(other, KeyOf(i), false);
    ASSERT_EQ(theirs.end, End::kOthers) << i;
    const auto took = TimeUntilWoken(other, i, theirs.left, [&] {
      EXPECT_TRUE(IsListenedTo(all, i));
      one.tier->Put(NumberedEntry(i));
      one.leases->Release(KeyOf(i), mine.token);
    });
    ASSERT_TRUE(took) << i;
    EXPECT_LT(took->count(), 1'000) << i;
    EXPECT_TRUE(other.tier->Get(KeyOf(i))->has_value()) << i;
  }
}

}  // namespace
}  // namespace kiln::cache::redis
