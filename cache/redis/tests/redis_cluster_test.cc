// SPDX-License-Identifier: Apache-2.0
//
// With three masters and three replicas.
#include "cache/redis/names.h"
#include "cache/redis/redis_tier.h"
#include "cache/redis/tests/redis_test_servers.h"

namespace kiln::cache::redis {
namespace {

using cache::testing::KeyOf;
using cache::testing::NumberedEntry;
using testing::Eventually;
using testing::Server;

class RedisClusterTest : public ::testing::Test {
 protected:
  void Connect(std::vector<HostPort> servers) {
    cluster_ = std::make_shared<Cluster>(Cluster::Options{.servers = std::move(servers)}, clock_);
    tier_ = std::make_unique<RedisTier>(RedisTier::Options{.queue = {.expiry = std::chrono::hours(1)}}, cluster_, std::make_shared<LeaseTable>());
    ASSERT_TRUE(cluster_->AwaitAvailable(std::chrono::seconds(10)));
  }
  bool Has(int number) const {
    const auto found = tier_->Get(KeyOf(number));
    return found && *found && (*found)->sealed() == NumberedEntry(number).sealed();
  }
  void Put(int from, int to) {
    for (int i = from; i < to; ++i) ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(i))) << i;
  }
  int Found(int from, int to) const {
    int found = 0;
    for (int i = from; i < to; ++i) found += Has(i) ? 1 : 0;
    return found;
  }

  const testing::RealClock clock_;
  std::shared_ptr<Cluster> cluster_;
  std::unique_ptr<RedisTier> tier_;
};

TEST_F(RedisClusterTest, EachKeyGoesToItsServer) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Connect({servers[1].at()});  // which tells of the others
  Put(0, 100);
  EXPECT_EQ(Found(0, 100), 100);
  for (std::size_t i = 0; i < testing::Servers::kMasters; ++i) EXPECT_GT(servers[i].Ask({"DBSIZE"})->integer, 10) << i;
  const auto other = std::make_shared<Cluster>(Cluster::Options{.servers = {servers[5].at()}}, clock_);
  ASSERT_TRUE(other->AwaitAvailable(std::chrono::seconds(10)));
}

// The slot of one key moves while it is used: ASK while it is under way, MOVED afterwards.
TEST_F(RedisClusterTest, FollowsASlotThatMoves) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Connect(servers.addresses());
  Put(0, 1);
  const Names names(KeyOf(0));
  const std::string slot = std::to_string(names.slot);
  Server& from = servers.master_of(names.slot);
  Server& to = servers[0].port() == from.port() ? servers[1] : servers[0];
  const std::string from_id = from.Ask({"CLUSTER", "MYID"})->text, to_id = to.Ask({"CLUSTER", "MYID"})->text;
  ASSERT_EQ(to.Ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id})->text, "OK");
  ASSERT_EQ(from.Ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id})->text, "OK");
  EXPECT_TRUE(Has(0)) << "still here";
  ASSERT_EQ(from.Ask({"MIGRATE", "127.0.0.1", std::to_string(to.port()), names.entry, "0", "1000"})->text, "OK");
  EXPECT_TRUE(Has(0)) << "ASK";
  ASSERT_EQ(to.Ask({"CLUSTER", "SETSLOT", slot, "NODE", to_id})->text, "OK");
  ASSERT_EQ(from.Ask({"CLUSTER", "SETSLOT", slot, "NODE", to_id})->text, "OK");
  EXPECT_TRUE(Has(0)) << "MOVED";
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(0))) << "a pipeline follows, too";
  EXPECT_EQ(tier_->Stats().errors, 0u);
}

// A master is killed: its replica is read at once, and written to once it has taken over.
TEST_F(RedisClusterTest, AReplicaTakesOver) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Connect(servers.addresses());
  Put(0, 60);
  for (std::size_t i = 0; i < testing::Servers::kMasters; ++i) {
    ASSERT_TRUE(Eventually([&] { return servers[3 + i].Ask({"DBSIZE"})->integer == servers[i].Ask({"DBSIZE"})->integer; }));
  }
  servers[0].Kill();
  EXPECT_GE(Found(0, 60), 58) << "those that met the failure may be lost";
  EXPECT_EQ(Found(0, 60), 60);
  EXPECT_TRUE(Eventually([&] {
    for (int i = 60; i < 120; ++i) {
      if (!PutAndWait(*tier_, NumberedEntry(i))) return false;
    }
    return true;
  }));
  EXPECT_EQ(Found(0, 120), 120);
}

TEST_F(RedisClusterTest, NobodyWaitsForAStoreThatStandsStill) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Connect(servers.addresses());
  Put(0, 30);
  for (std::size_t i = 0; i < servers.size(); ++i) servers[i].Signal(SIGSTOP);
  const SteadyTime began = clock_.SteadyNow();
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(tier_->Get(KeyOf(i)));
  EXPECT_LT(clock_.SteadyNow() - began, std::chrono::milliseconds(150)) << "one timeout for all of them";
  for (std::size_t i = 0; i < servers.size(); ++i) servers[i].Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return Found(0, 30) == 30; }));
}

TEST_F(RedisClusterTest, ADeadStoreIsMissedAtOnceAndFoundAgain) {
  KILN_NEEDS_REDIS();
  testing::Servers servers;
  ASSERT_TRUE(servers.ready());
  Connect(servers.addresses());
  Put(0, 10);
  for (std::size_t i = 0; i < servers.size(); ++i) servers[i].Kill();
  const SteadyTime began = clock_.SteadyNow();
  EXPECT_EQ(Found(0, 10), 0);
  EXPECT_LT(clock_.SteadyNow() - began, std::chrono::milliseconds(150));
  EXPECT_FALSE(PutAndWait(*tier_, NumberedEntry(1)));
  for (std::size_t i = 0; i < servers.size(); ++i) servers[i].Start();
  EXPECT_TRUE(Eventually([&] { return PutAndWait(*tier_, NumberedEntry(1)).has_value(); }));
  EXPECT_TRUE(Eventually([&] { return Has(1); }));
}

}  // namespace
}  // namespace kiln::cache::redis
