// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/redis_tier.h"

#include <fstream>

#include "cache/outside/packed_entry.h"
#include "cache/redis/names.h"
#include "cache/redis/tests/redis_test_servers.h"

namespace kiln::cache::redis {
namespace {

using cache::testing::KeyOf;
using cache::testing::MakeEntry;
using cache::testing::NumberedEntry;
using cache::testing::RandomBytes;
using testing::Eventually;
using testing::Server;

class RedisTierTest : public ::testing::Test {
 protected:
  void Connect(Cluster::Options options, RedisTier::Options tier = {}) {
    tier_.reset();
    if (tier.queue.expiry.count() == 0) tier.queue.expiry = std::chrono::hours(1);
    cluster_ = std::make_shared<Cluster>(std::move(options), clock_);
    tier_ = std::make_unique<RedisTier>(tier, cluster_, std::make_shared<LeaseTable>());
  }
  void ConnectTo(const Server& server, RedisTier::Options tier = {}) {
    Connect({.servers = {server.at()}}, tier);
    ASSERT_TRUE(cluster_->AwaitAvailable(std::chrono::seconds(10)));
  }

  const testing::RealClock clock_;
  std::shared_ptr<Cluster> cluster_;
  std::unique_ptr<RedisTier> tier_;
};

TEST_F(RedisTierTest, KeepsWhatWasPut) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{50'000}, std::size_t{3'000'000}}) {
    const Entry entry = MakeEntry(KeyOf(static_cast<int>(size)), RandomBytes(size, 1));
    EXPECT_FALSE(tier_->Get(entry.key())->has_value());
    ASSERT_TRUE(PutAndWait(*tier_, entry));
    const auto found = tier_->Get(entry.key());
    ASSERT_TRUE(found && *found) << size;
    EXPECT_EQ((*found)->sealed(), entry.sealed());
  }
  EXPECT_EQ(tier_->Stats().hits, 4u);
  EXPECT_EQ(tier_->Stats().misses, 4u);
  EXPECT_EQ(tier_->Stats().puts, 4u);
  EXPECT_EQ(tier_->Stats().errors, 0u);
  EXPECT_TRUE(*tier_->Erase(KeyOf(1)));
  EXPECT_FALSE(*tier_->Erase(KeyOf(1)));
  EXPECT_FALSE(tier_->Get(KeyOf(1))->has_value());
}

TEST_F(RedisTierTest, LargeEntriesStayOut) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server, {.max_entry = 10'000, .queue = {}});
  const Entry small = NumberedEntry(1, 9'000), large = NumberedEntry(2, 10'001);
  EXPECT_TRUE(PutAndWait(*tier_, small));
  EXPECT_TRUE(PutAndWait(*tier_, large));
  EXPECT_TRUE(tier_->Get(small.key())->has_value());
  EXPECT_FALSE(tier_->Get(large.key())->has_value());
}

TEST_F(RedisTierTest, WhatIsNotUsedExpires) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server, {.queue = {.expiry = std::chrono::hours(1)}});
  const Entry used = NumberedEntry(1), unused = NumberedEntry(2);
  ASSERT_TRUE(PutAndWait(*tier_, used) && PutAndWait(*tier_, unused));
  const auto minutes_left = [&](const Entry& entry) { return server.Ask({"PTTL", Names(entry.key()).entry})->integer / 60'000; };
  const auto age = [&](const Entry& entry, const char* left) { server.Ask({"PEXPIRE", Names(entry.key()).entry, left}); };
  EXPECT_GE(minutes_left(unused), 50);
  for (const Entry* entry : {&used, &unused}) age(*entry, "600000");
  EXPECT_TRUE(tier_->Get(used.key())->has_value());
  EXPECT_TRUE(Eventually([&] { return minutes_left(used) >= 50; })) << "it has its whole time again";
  EXPECT_LE(minutes_left(unused), 10);
  age(unused, "1");
  EXPECT_TRUE(Eventually([&] { return server.Ask({"EXISTS", Names(unused.key()).entry})->integer == 0; }));
  EXPECT_FALSE(tier_->Get(unused.key())->has_value());
}

TEST_F(RedisTierTest, DamagedEntriesAreNeverServed) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server);
  const Entry entry = NumberedEntry(1, 200), other = NumberedEntry(2, 200);
  const Names names(entry.key());
  const std::string head(entry.head()), body = Compress(entry.body());
  const auto refused = [&](std::string_view damaged_head, std::string_view damaged_body) {
    server.Ask({"HSET", names.entry, "h", damaged_head, "b", damaged_body, "f", "0"});
    const auto found = tier_->Get(entry.key());
    const bool right = !found && found.error().code == ErrorCode::kCorrupt;
    return right && Eventually([&] { return server.Ask({"EXISTS", names.entry})->integer == 0; });
  };
  for (std::size_t i = 0; i < head.size(); i += 7) {
    std::string damaged = head;
    damaged[i] ^= 1;
    EXPECT_TRUE(refused(damaged, body)) << i;
  }
  for (std::size_t i = 0; i < body.size(); i += 7) {
    std::string damaged = body;
    damaged[i] ^= 1;
    // Some bits of a frame say nothing of what is in it.
    server.Ask({"HSET", names.entry, "h", head, "b", damaged, "f", "0"});
    const auto found = tier_->Get(entry.key());
    EXPECT_TRUE(!found || !*found || (*found)->sealed() == entry.sealed()) << i;  // not there: the last one is evicted only now
  }
  EXPECT_TRUE(refused(other.head(), Compress(other.body()))) << "another key's";
  EXPECT_TRUE(refused(head, Compress(other.body()))) << "another body";
  EXPECT_TRUE(refused(head, "")) << "no body";
  EXPECT_TRUE(refused("", body)) << "no head";
  EXPECT_TRUE(refused(head, Compress(std::string(std::size_t{64} << 20, 'x')))) << "a body that would swell";
  server.Ask({"SET", names.entry, "something else"});
  EXPECT_FALSE(tier_->Get(entry.key()));
  EXPECT_TRUE(Eventually([&] { return server.Ask({"EXISTS", names.entry})->integer == 0; }));
  EXPECT_GT(tier_->Stats().corrupt, 10u);
  EXPECT_TRUE(PutAndWait(*tier_, entry));
  EXPECT_TRUE(tier_->Get(entry.key())->has_value());
}

TEST_F(RedisTierTest, AFullStoreStillReads) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server);
  ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  server.Ask({"CONFIG", "SET", "maxmemory", "1"});
  const auto put = PutAndWait(*tier_, NumberedEntry(2));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kFull);
  EXPECT_TRUE(tier_->Stats().read_only);
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
  server.Ask({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(2)));
  EXPECT_FALSE(tier_->Stats().read_only);
}

TEST_F(RedisTierTest, TheQueueIsBounded) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server, {.queue = {.max_bytes = 100'000}});
  server.Signal(SIGSTOP);
  std::atomic<int> kept = 0, lost = 0;
  const SteadyTime began = clock_.SteadyNow();
  for (int i = 0; i < 200; ++i) tier_->Put(NumberedEntry(i, 10'000), [&](const auto& put) { ++(put ? kept : lost); });
  EXPECT_LT(clock_.SteadyNow() - began, std::chrono::milliseconds(500)) << "nobody waits";
  EXPECT_TRUE(Eventually([&] { return kept + lost == 200; }));
  EXPECT_GT(lost, 150);
  EXPECT_GE(tier_->Stats().dropped_puts, 150u);
  server.Signal(SIGCONT);
}

TEST_F(RedisTierTest, WhatIsLargerThanTheQueueIsWrittenAlone) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server, {.queue = {.max_bytes = 100'000}});
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1, 1'000'000)));
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
}

TEST_F(RedisTierTest, AServerThatStandsStillIsLeftAloneAndTriedAgain) {
  KILN_NEEDS_REDIS();
  const Server server;
  ConnectTo(server);
  ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  server.Signal(SIGSTOP);
  SteadyTime began = clock_.SteadyNow();
  const auto stalled = tier_->Get(KeyOf(1));
  ASSERT_FALSE(stalled);
  EXPECT_EQ(stalled.error().code, ErrorCode::kUnreachable);
  EXPECT_LT(clock_.SteadyNow() - began, std::chrono::milliseconds(150)) << "its timeout, on a machine that does other things";
  EXPECT_FALSE(tier_->available());
  began = clock_.SteadyNow();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(tier_->Get(KeyOf(1)));
  EXPECT_LT(clock_.SteadyNow() - began, std::chrono::milliseconds(200)) << "nobody waits for it any more";
  server.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return tier_->available(); }));
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
}

TEST_F(RedisTierTest, AServerThatIsNotThereYetIsFound) {
  KILN_NEEDS_REDIS();
  Server server;
  server.Kill();
  Connect({.servers = {server.at()}});
  EXPECT_FALSE(cluster_->AwaitAvailable(std::chrono::milliseconds(100)));
  EXPECT_FALSE(tier_->Get(KeyOf(1)));
  server.Start();
  EXPECT_TRUE(cluster_->AwaitAvailable(std::chrono::seconds(10)));
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
}

TEST_F(RedisTierTest, APasswordIsAskedForAtEachConnection) {
  KILN_NEEDS_REDIS();
  const Server server({"--requirepass", "secret"});
  std::string password = "wrong";
  Mutex mutex;
  std::string said;
  const auto credentials = [&]() -> std::expected<std::optional<Credentials>, std::string> {
    MutexLock lock(mutex);
    return Credentials{"", password};
  };
  const auto on_event = [&](bool good, std::string_view what) {
    MutexLock lock(mutex);
    if (!good) said = what;
  };
  Connect({.servers = {server.at()}, .tls = nullptr, .credentials = credentials, .on_event = on_event});
  EXPECT_TRUE(Eventually([&] {
    MutexLock lock(mutex);
    return said.contains("--cluster-credentials") && said.contains("WRONGPASS");
  }));
  EXPECT_FALSE(tier_->available());
  {
    MutexLock lock(mutex);
    EXPECT_FALSE(said.contains("wrong ")) << said;
    password = "secret";
  }
  EXPECT_TRUE(cluster_->AwaitAvailable(std::chrono::seconds(10)));
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  tier_.reset();
}

class RedisTlsTest : public RedisTierTest {
 protected:
  // A certificate for 127.0.0.1 that vouches for itself.
  std::string MakeCertificate(const std::string& name, const std::string& alternative) {
    const std::string certificate = directory_ / (name + ".crt").c_str(), key = directory_ / (name + ".key").c_str();
    const std::string command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=" + name + " -addext subjectAltName=" + alternative +
                                " -keyout " + key + " -out " + certificate + " 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return certificate;
  }
  static std::vector<std::string> With(const std::string& certificate) {
    const std::string key = certificate.substr(0, certificate.size() - 3) + "key";
    return {"--port", "0", "--tls-port", "PORT", "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no"};
  }

  const cache::testing::TemporaryDirectory directory_;
};

TEST_F(RedisTlsTest, SpeaksTls) {
  KILN_NEEDS_REDIS();
  const std::string certificate = MakeCertificate("right", "IP:127.0.0.1");
  const Server server(With(certificate));
  auto tls = Tls::Load(certificate);
  ASSERT_TRUE(tls) << tls.error();
  Connect({.servers = {server.at()}, .tls = *tls});
  ASSERT_TRUE(cluster_->AwaitAvailable(std::chrono::seconds(10)));
  for (const int size : {1'000, 2'000'000}) {
    const Entry entry = NumberedEntry(size, static_cast<std::size_t>(size));
    ASSERT_TRUE(PutAndWait(*tier_, entry));
    const auto found = tier_->Get(entry.key());
    ASSERT_TRUE(found && *found) << size;
    EXPECT_EQ((*found)->sealed(), entry.sealed());
  }
}

TEST_F(RedisTlsTest, TrustsNobodyElse) {
  KILN_NEEDS_REDIS();
  const std::string right = MakeCertificate("right", "IP:127.0.0.1"), other = MakeCertificate("other", "IP:127.0.0.1"),
                    elsewhere = MakeCertificate("elsewhere", "IP:127.0.0.2");
  EXPECT_FALSE(Tls::Load(directory_ / "missing"));
  for (const auto& [server_has, we_trust] : {std::pair(right, other), std::pair(elsewhere, elsewhere)}) {
    const Server server(With(server_has));
    Mutex mutex;
    std::string said;
    const auto on_event = [&](bool, std::string_view what) {
      MutexLock lock(mutex);
      said = what;
    };
    Connect({.servers = {server.at()}, .tls = *Tls::Load(we_trust), .on_event = on_event});
    // The first message may be of a server that is not there yet; the store never comes into use.
    EXPECT_FALSE(cluster_->AwaitAvailable(std::chrono::milliseconds(1'000)));
    tier_.reset();
    cluster_.reset();
  }
}

}  // namespace
}  // namespace kiln::cache::redis
