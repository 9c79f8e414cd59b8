// SPDX-License-Identifier: Apache-2.0
//
// kilnd and its store: one of an older version, one that cannot be written, and what survives a kill.
#include <sys/mount.h>

#include <cstdlib>
#include <string>

#include "cache/sqlite/sqlite.h"
#include "cache/testing/store.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

class StoreUpgradeTest : public DaemonTest {
 protected:
  static constexpr uint32_t kPrograms = 20;

  fs::path Database() const { return fs::path(daemon_->State()) / "kiln.db"; }

  void CompileAll() {
    for (uint32_t i = 0; i < kPrograms; ++i) ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok());
  }
  void ExpectAllFromDisk() {
    for (uint32_t i = 0; i < kPrograms; ++i) {
      const auto kept = daemon_->Compile(MakeRequest(Order::kAnswer, i));
      EXPECT_EQ(kept.reply.origin(), v1::DISK) << i;
      EXPECT_EQ(kept.reply.artifact().code(), std::string(1 + i * 100, 'k'));
    }
  }

  // The stopped daemon's store as a kilnd of version 1 would have left it, with so many rows more.
  void MakeVersion1(int more) {
    const fs::path newer = folder_ / "newer.db";
    fs::rename(Database(), newer);
    auto db = *cache::sqlite::Connection::Open(Database(), cache::sqlite::OpenMode::kCreate);
    ASSERT_TRUE(db.Execute(cache::testing::kVersion1));
    ASSERT_TRUE(db.Execute("ATTACH '" + newer.string() +
                           "' AS newer;"
                           "INSERT INTO entry SELECT key, body, size, created, last_used, hits, head FROM newer.entry;"
                           "INSERT INTO blob SELECT digest, bytes FROM newer.blob;"
                           "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < " +
                           std::to_string(more) +
                           ")"
                           "INSERT INTO entry SELECT randomblob(32), randomblob(32), 100, i, i, 0, zeroblob(100) FROM n WHERE i <= " +
                           std::to_string(more) +
                           ";"
                           "DETACH newer;"));
    fs::remove(newer);
  }

  // Of the files as they lie there; they are not touched.
  std::int64_t VersionOf(const fs::path& database) const {
    const fs::path copy = folder_ / "copy.db";
    for (const char* suffix : {"", "-wal"}) {
      fs::remove(copy.string() + suffix);
      if (fs::exists(database.string() + suffix)) fs::copy_file(database.string() + suffix, copy.string() + suffix);
    }
    auto db = *cache::sqlite::Connection::Open(copy, cache::sqlite::OpenMode::kWrite);
    return *db.Integer("PRAGMA user_version");
  }

  std::uint64_t LogBytes() const {
    std::error_code error;
    const auto size = fs::file_size(Database().string() + "-wal", error);
    return error ? 0 : size;
  }

  // Starts a kilnd and kills it once the upgrade has written something that is not committed.
  void KillWhileItUpgrades() {
    std::vector<std::string> options = {KILN_BIN "/kilnd",
                                        "--listen=unix:" + daemon_->Socket(),
                                        "--state-dir=" + daemon_->State(),
                                        "--ptxas=none",
                                        "--worker-executable=" KILN_BIN "/kiln-fake-worker",
                                        "--log-file=" + daemon_->Log()};
    std::vector<char*> argv;
    for (std::string& option : options) argv.push_back(option.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    ASSERT_EQ(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (LogBytes() < 65536 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // between looks
    }
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

TEST_F(StoreUpgradeTest, AnOlderStoreIsServed) {
  daemon_->Start();
  CompileAll();
  ASSERT_EQ(daemon_->Stop(), 0);
  MakeVersion1(0);
  ASSERT_EQ(VersionOf(Database()), 1);
  daemon_->Start();
  ExpectAllFromDisk();
  EXPECT_EQ(VersionOf(Database()), 2);
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 500)).status.ok());
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().tiers(1).entries() == kPrograms + 1; }));
  grpc::ClientContext context;
  v1::CacheVerifyReply report;
  ASSERT_TRUE(daemon_->stub().CacheVerify(&context, {}, &report).ok());
  EXPECT_EQ(report.checked(), kPrograms + 1);
  EXPECT_EQ(report.corrupt() + report.forged(), 0u);
}

TEST_F(StoreUpgradeTest, AnUpgradeThatWasKilledBeginsAgain) {
  daemon_->Start();
  CompileAll();
  bool cut_short = false;
  for (int attempt = 0; attempt < 5 && !cut_short; ++attempt) {  // a slow test may come when all is done
    ASSERT_EQ(daemon_->Stop(), 0);
    MakeVersion1(100'000);
    KillWhileItUpgrades();
    cut_short = VersionOf(Database()) == 1 && LogBytes() >= 65536;
    daemon_->Start();
    ExpectAllFromDisk();
    EXPECT_EQ(VersionOf(Database()), 2);
    EXPECT_FALSE(fs::exists(Database().string() + ".corrupt-1"));
  }
  EXPECT_TRUE(cut_short);
}

class DurableStoreTest : public DaemonTest {
 protected:
  static v1::CompileRequest Durable(uint32_t number) {
    v1::CompileRequest request = MakeRequest(Order::kAnswer, number);
    request.set_durable(true);
    return request;
  }
  // Mounted read-only at its own place; false where this process may not.
  bool MakeReadOnly() {
    const std::string state = daemon_->State();
    if (::mount(state.c_str(), state.c_str(), nullptr, MS_BIND, nullptr) != 0) return false;
    mounted_ = true;
    return ::mount(nullptr, state.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
  }
  void TearDown() override {
    if (mounted_) ::umount2(daemon_->State().c_str(), MNT_DETACH);
    DaemonTest::TearDown();
  }

  bool mounted_ = false;
};

// KILN_KILLS: how often kilnd is killed. Not once in so many kills is lost what was acknowledged.
uint32_t Kills() {
  const char* text = std::getenv("KILN_KILLS");
  return text == nullptr ? 10 : uint32_t(std::stoul(text));
}

TEST_F(DurableStoreTest, WhatIsDurableSurvivesAKill) {
  for (uint32_t round = 0; round < Kills(); ++round) {
    daemon_->Start();
    const auto made = daemon_->Compile(Durable(round));
    daemon_->Kill();
    ASSERT_TRUE(made.status.ok()) << made.status.error_message();
    EXPECT_EQ(made.reply.origin(), v1::COMPILED);
    EXPECT_TRUE(made.reply.durable());
  }
  daemon_->Start();
  for (uint32_t round = 0; round < Kills(); ++round) {
    const auto kept = daemon_->Compile(MakeRequest(Order::kAnswer, round));
    EXPECT_EQ(kept.reply.origin(), v1::DISK) << round;
    EXPECT_TRUE(kept.reply.durable());
  }
}

// A client that goes while the store commits leaves nothing behind that outlives kilnd.
TEST_F(DurableStoreTest, AClientThatDoesNotWaitForTheCommitLeavesNothing) {
  daemon_->Start();
  for (uint32_t round = 0; round < 50; ++round) (void)daemon_->Compile(Durable(round), milliseconds(round % 10));
  EXPECT_EQ(daemon_->Stop(), 0);
}

TEST_F(DurableStoreTest, APutThatWasAcknowledgedSurvivesAKill) {
  daemon_->Start({"--accept-put=yes"});
  const v1::Artifact artifact = daemon_->Compile(MakeRequest(Order::kAnswer, 1)).reply.artifact();
  daemon_->Kill();
  for (uint32_t round = 2; round < 2 + Kills(); ++round) {
    daemon_->Start({"--accept-put=yes"});
    v1::PutRequest put;
    *put.mutable_request() = MakeRequest(Order::kAnswer, round);
    *put.mutable_artifact() = artifact;
    grpc::ClientContext context;
    v1::PutReply reply;
    const grpc::Status status = daemon_->stub().Put(&context, put, &reply);
    daemon_->Kill();
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  daemon_->Start();
  for (uint32_t round = 2; round < 2 + Kills(); ++round)
    EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, round)).reply.origin(), v1::DISK) << round;
}

TEST_F(DurableStoreTest, AReplySaysWhenTheStoreCannotTakeIt) {
  fs::create_directories(fs::path(daemon_->State()) / "lock");  // a folder cannot be locked
  daemon_->Start();
  for (const v1::Origin origin : {v1::COMPILED, v1::MEMORY}) {
    const auto made = daemon_->Compile(Durable(1));
    ASSERT_TRUE(made.status.ok()) << made.status.error_message();
    EXPECT_EQ(made.reply.origin(), origin);
    EXPECT_FALSE(made.reply.durable());
  }
  fs::remove(fs::path(daemon_->State()) / "lock");
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Compile(Durable(1)).reply.durable(); }, std::chrono::seconds(20))) << "put again";
}

TEST_F(DurableStoreTest, AReadOnlyMountServesWhatIsStored) {
  daemon_->Start();
  ASSERT_TRUE(daemon_->Compile(Durable(1)).status.ok());
  daemon_->Kill();  // with a log that was not copied back
  if (!MakeReadOnly()) GTEST_SKIP() << "this process may not mount";
  daemon_->Start();
  const auto kept = daemon_->Compile(MakeRequest(Order::kAnswer, 1));
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  EXPECT_EQ(kept.reply.origin(), v1::DISK);
  const auto made = daemon_->Compile(Durable(2));
  ASSERT_TRUE(made.status.ok()) << made.status.error_message();
  EXPECT_EQ(made.reply.origin(), v1::COMPILED);
  EXPECT_FALSE(made.reply.durable());
  EXPECT_EQ(daemon_->Stats().tiers(1).state(), "read-only");
  EXPECT_EQ(daemon_->Stats().tiers(1).entries(), 1u);
  EXPECT_EQ(daemon_->LinesWith({"mounted read-only"}), 1u);
}

}  // namespace
}  // namespace kiln::server::testing
