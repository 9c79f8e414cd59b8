// SPDX-License-Identifier: Apache-2.0
//
// A server of three is gone, and no replica takes over: its keys are elsewhere meanwhile.
#include "cache/redis/homes.h"

#include "cache/redis/redis_leases.h"
#include "cache/redis/tests/redis_test_servers.h"

namespace kiln::cache::redis {
namespace {

using cache::testing::KeyOf;
using cache::testing::NumberedEntry;
using testing::Eventually;
using End = Leases::End;

struct Host {
  Host(const std::vector<HostPort>& servers, const Clock& clock)
      : cluster(std::make_shared<Cluster>(Cluster::Options{.servers = servers, .timeout = std::chrono::milliseconds(500)}, clock)),
        table(std::make_shared<LeaseTable>()),
        tier(std::make_shared<RedisTier>(RedisTier::Options{.queue = {.expiry = std::chrono::hours(1)}}, cluster, table)),
        leases(std::make_unique<RedisLeases>(cluster, table, tier)) {
    EXPECT_TRUE(cluster->AwaitAvailable(std::chrono::seconds(10)));
  }
  Leases::Taken Take(int number) {
    Waited waited;
    return leases->Take(KeyOf(number), false, waited);
  }
  bool Has(int number) const {
    const auto found = tier->Get(KeyOf(number));
    return found && *found;
  }

  std::shared_ptr<Cluster> cluster;
  std::shared_ptr<LeaseTable> table;
  std::shared_ptr<RedisTier> tier;
  std::unique_ptr<RedisLeases> leases;
};

class RedisHomesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KILN_NEEDS_REDIS();
    servers_ = std::make_unique<testing::Servers>();
    ASSERT_TRUE(servers_->ready());
    for (int i = 0; numbers_.size() < 6; ++i) {
      if (&servers_->master_of(Names(KeyOf(i)).slot) == &(*servers_)[0]) numbers_.push_back(i);
    }
  }
  void Kill() {
    (*servers_)[0].Kill();
    (*servers_)[testing::Servers::kMasters].Kill();  // its replica
  }
  // Until these hosts know, and the servers that are left serve without the others.
  void AwaitGone(const std::vector<Host*>& hosts) {
    for (Host* const host : hosts) {
      ASSERT_TRUE(Eventually([&] {
        host->Has(numbers_[0]);
        return !host->cluster->InUse(Names(KeyOf(numbers_[0])).slot) && HomeOf(KeyOf(numbers_[0]), *host->cluster) != 0;
      }));
    }
    ASSERT_TRUE(Eventually([&] { return (*servers_)[1].Ask({"CLUSTER", "INFO"})->text.contains("cluster_slots_fail:546"); }));
  }
  std::shared_ptr<std::atomic<bool>> Await(Host& host, int number, std::chrono::milliseconds left) {
    auto woken = std::make_shared<std::atomic<bool>>(false);
    host.leases->Await(host.leases->NewWait(), KeyOf(number), left, clock_.SteadyNow() + std::chrono::minutes(1), [woken] { *woken = true; });
    return woken;
  }

  const testing::RealClock clock_;
  std::unique_ptr<testing::Servers> servers_;
  std::vector<int> numbers_;  // of keys whose server is the one that is killed
};

TEST_F(RedisHomesTest, HostsAgreeWithoutTheServerOfAKey) {
  Host one(servers_->addresses(), clock_), other(servers_->addresses(), clock_);
  Kill();
  AwaitGone({&one, &other});
  for (const int number : numbers_) {
    const auto mine = one.Take(number);
    ASSERT_EQ(mine.end, End::kMine) << number;
    const auto theirs = other.Take(number);
    ASSERT_EQ(theirs.end, End::kOthers) << number;
    const auto woken = Await(other, number, theirs.left);
    one.tier->Put(NumberedEntry(number));
    one.leases->Release(KeyOf(number), mine.token);
    ASSERT_TRUE(Eventually([&] { return woken->load(); }, std::chrono::seconds(4))) << number;
    EXPECT_TRUE(other.Has(number)) << number;
    EXPECT_EQ(other.Take(number).end, End::kThere) << number;
  }
}

// The lease is gone with its server; its owner is not.
TEST_F(RedisHomesTest, WhatWasBeingMadeIsPutElsewhereAndNobodyElseMakesIt) {
  Host one(servers_->addresses(), clock_), other(servers_->addresses(), clock_);
  const int number = numbers_[0];
  const auto mine = one.Take(number);
  ASSERT_EQ(mine.end, End::kMine);
  const auto theirs = other.Take(number);
  ASSERT_EQ(theirs.end, End::kOthers);
  const auto woken = Await(other, number, theirs.left);
  Kill();
  one.tier->Put(NumberedEntry(number));
  one.leases->Release(KeyOf(number), mine.token);
  ASSERT_TRUE(Eventually([&] { return woken->load(); }, std::chrono::seconds(4)));
  EXPECT_TRUE(Eventually([&] { return other.Has(number); }, std::chrono::seconds(2)));
}

TEST_F(RedisHomesTest, AnOwnerThatDiesElsewhereIsReplacedToo) {
  auto one = std::make_unique<Host>(servers_->addresses(), clock_);
  Host other(servers_->addresses(), clock_);
  Kill();
  AwaitGone({one.get(), &other});
  ASSERT_EQ(one->Take(numbers_[0]).end, End::kMine);
  const auto theirs = other.Take(numbers_[0]);
  ASSERT_EQ(theirs.end, End::kOthers);
  one.reset();  // it renews no more, and has not released
  const SteadyTime began = clock_.SteadyNow();
  const auto woken = Await(other, numbers_[0], theirs.left);
  ASSERT_TRUE(Eventually([&] { return woken->load(); }));
  EXPECT_LT(clock_.SteadyNow() - began, std::chrono::seconds(3));
  EXPECT_EQ(other.Take(numbers_[0]).end, End::kMine);
}

TEST_F(RedisHomesTest, WhoComesBackGetsWhatWasPutElsewhere) {
  Host one(servers_->addresses(), clock_), other(servers_->addresses(), clock_);
  Kill();
  AwaitGone({&one, &other});
  const auto mine = one.Take(numbers_[0]);
  const auto still = one.Take(numbers_[1]);
  ASSERT_EQ(mine.end, End::kMine);
  ASSERT_TRUE(PutAndWait(*one.tier, NumberedEntry(numbers_[0])));
  one.leases->Release(KeyOf(numbers_[0]), mine.token);
  (*servers_)[0].Start();
  for (Host* const host : {&one, &other}) ASSERT_TRUE(Eventually([&] { return host->cluster->InUse(Names(KeyOf(numbers_[0])).slot); }));
  EXPECT_EQ(other.Take(numbers_[0]).end, End::kThere) << "before it is where it belongs";
  const auto theirs = other.Take(numbers_[1]);
  ASSERT_EQ(theirs.end, End::kOthers) << "a lease that was taken before";
  const auto woken = Await(other, numbers_[1], theirs.left);
  EXPECT_FALSE(Eventually([&] { return woken->load(); }, std::chrono::milliseconds(1'500))) << "it is renewed where it is";
  one.leases->Release(KeyOf(numbers_[1]), still.token);
  EXPECT_TRUE(Eventually([&] { return woken->load(); }, std::chrono::milliseconds(1'500)));
  EXPECT_TRUE(other.Has(numbers_[0]));
  const Host stranger((*servers_).addresses(), clock_);  // to whom nothing has happened
  EXPECT_TRUE(Eventually([&] {
    static_cast<void>(PutAndWait(*one.tier, NumberedEntry(1000)));
    return stranger.Has(numbers_[0]);
  }));
}

// What was left elsewhere would be found there the next time that the key's own server is gone.
TEST_F(RedisHomesTest, WhatIsErasedIsErasedElsewhereToo) {
  Host one(servers_->addresses(), clock_);
  const Digest key = KeyOf(numbers_[0]);
  Kill();
  AwaitGone({&one});
  ASSERT_TRUE(PutAndWait(*one.tier, NumberedEntry(numbers_[0])));
  const Names elsewhere(key, OtherHome(key, *one.cluster));
  const auto is_elsewhere = [&] { return servers_->master_of(elsewhere.slot).Ask({"EXISTS", elsewhere.entry})->integer == 1; };
  EXPECT_TRUE(is_elsewhere());
  (*servers_)[0].Start();
  ASSERT_TRUE(Eventually([&] { return one.cluster->InUse(Names(key).slot); }));
  ASSERT_TRUE(Eventually([&] {
    static_cast<void>(PutAndWait(*one.tier, NumberedEntry(1000)));
    return (*servers_)[0].Ask({"EXISTS", Names(key).entry})->integer == 1;
  }));
  EXPECT_TRUE(is_elsewhere()) << "it is in both";
  EXPECT_EQ(one.tier->Erase(key), true);
  EXPECT_FALSE(is_elsewhere());
  EXPECT_FALSE(one.Has(numbers_[0]));
  EXPECT_EQ(one.tier->Erase(key), false);
}

}  // namespace
}  // namespace kiln::cache::redis
