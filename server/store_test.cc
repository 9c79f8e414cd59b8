// SPDX-License-Identifier: Apache-2.0
//
// kilnd on a store of an older version: what was in it is served, also after an upgrade that was cut short.
#include "cache/sqlite.h"
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
    ASSERT_TRUE(db.Execute("ATTACH '" + newer.string() + "' AS newer;"
                           "INSERT INTO entry SELECT key, body, size, created, last_used, hits, head FROM newer.entry;"
                           "INSERT INTO blob SELECT digest, bytes FROM newer.blob;"
                           "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < " + std::to_string(more) + ")"
                           "INSERT INTO entry SELECT randomblob(32), randomblob(32), 100, i, i, 0, zeroblob(100) FROM n WHERE i <= " +
                           std::to_string(more) + ";"
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
    std::vector<std::string> options = {KILN_BIN "/kilnd", "--listen=unix:" + daemon_->Socket(), "--state-dir=" + daemon_->State(),
                                        "--ptxas=none", "--worker-executable=" KILN_BIN "/kiln-fake-worker", "--log-file=" + daemon_->Log()};
    std::vector<char*> argv;
    for (std::string& option : options) argv.push_back(option.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    ASSERT_EQ(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (LogBytes() < 65536 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
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

}  // namespace
}  // namespace kiln::server::testing
