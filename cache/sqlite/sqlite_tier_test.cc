// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "cache/sqlite/store_directory.h"
#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::MakeEntry;
using testing::ManualClock;
using testing::Numbered;
using testing::NumberedEntry;
using testing::TemporaryDirectory;

class SqliteTierTest : public ::testing::Test {
 protected:
  void SetUp() override { options.directory = directory / "store"; }

  std::unique_ptr<SqliteTier> Open() {
    auto tier = SqliteTier::Open(options, clock);
    if (!tier) ADD_FAILURE() << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }

  TemporaryDirectory directory;
  ManualClock clock;
  SqliteOptions options;
};

TEST_F(SqliteTierTest, KeepsAcrossReopening) {
  const Entry entry = NumberedEntry(1, 50'000);
  {
    auto tier = Open();
    EXPECT_FALSE(tier->Get(KeyOf(1))->has_value());
    ASSERT_TRUE(PutAndWait(*tier, entry));
    EXPECT_EQ((**tier->Get(KeyOf(1))).sealed(), entry.sealed());
    tier->Put(NumberedEntry(2));  // not waited for: closing commits it
  }
  EXPECT_FALSE(std::filesystem::exists(options.directory / "open"));
  EXPECT_FALSE(std::filesystem::exists(options.directory / "kiln.db-wal")) << "closing leaves no log";
  auto tier = Open();
  EXPECT_EQ((**tier->Get(KeyOf(1))).sealed(), entry.sealed());
  EXPECT_TRUE(tier->Get(KeyOf(2))->has_value());
  ASSERT_TRUE(tier->Flush());
  EXPECT_EQ(tier->Stats().entries, 2u);
}

TEST_F(SqliteTierTest, ALockThatIsNoOrdinaryFileIsRefused) {
  namespace fs = std::filesystem;
  const fs::path victim = directory / "victim", lock = options.directory / "lock";
  std::ofstream(victim) << "precious";
  fs::create_directories(options.directory);
  fs::create_symlink(victim, lock);
  EXPECT_EQ(SqliteTier::Open(options, clock).error().code, ErrorCode::kRefused);
  EXPECT_EQ(fs::file_size(victim), 8u);
  fs::remove(lock);
  ASSERT_EQ(::mkfifo(lock.c_str(), 0600), 0);
  EXPECT_EQ(SqliteTier::Open(options, clock).error().code, ErrorCode::kRefused);
  fs::remove(lock);
  fs::create_hard_link(victim, lock);
  EXPECT_EQ(SqliteTier::Open(options, clock).error().code, ErrorCode::kRefused);
  EXPECT_EQ(fs::file_size(victim), 8u);
  fs::remove(lock);
  EXPECT_TRUE(SqliteTier::Open(options, clock));
}

TEST_F(SqliteTierTest, ADatabaseBehindASymbolicLinkIsRefused) {
  namespace fs = std::filesystem;
  fs::create_directories(options.directory);
  for (const char* name : {"kiln.db", "kiln.db-wal", "kiln.db-shm", "kiln.db-journal"}) {
    fs::create_symlink(directory / "elsewhere", options.directory / name);
    const auto open = SqliteTier::Open(options, clock);
    ASSERT_FALSE(open) << name;
    EXPECT_EQ(open.error().code, ErrorCode::kRefused);
    EXPECT_NE(open.error().message.find(std::string(name) + " is a symbolic link"), std::string::npos) << open.error().message;
    EXPECT_FALSE(fs::exists(directory / "elsewhere")) << "nothing is made where it leads";
    fs::remove(options.directory / name);
  }
  fs::create_directories(directory / "other");
  fs::create_symlink(directory / "other", directory / "link");
  options.directory = directory / "link";
  EXPECT_TRUE(SqliteTier::Open(options, clock)) << "the directory itself may be one";
}

TEST_F(SqliteTierTest, ADirectoryThatOthersCanWriteIsRefused) {
  namespace fs = std::filesystem;
  fs::create_directories(options.directory);
  fs::permissions(options.directory, fs::perms::all);
  const auto open = SqliteTier::Open(options, clock);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, ErrorCode::kRefused);
  EXPECT_NE(open.error().message.find("written by everybody"), std::string::npos) << open.error().message;
  fs::permissions(options.directory, fs::perms::owner_all | fs::perms::group_all);
  EXPECT_TRUE(SqliteTier::Open(options, clock)) << "a volume may be its group's";
  if (::geteuid() != 0) return;  // only root can give it away
  ASSERT_EQ(::chown(options.directory.c_str(), 4242, 4242), 0);
  EXPECT_EQ(SqliteTier::Open(options, clock).error().code, ErrorCode::kRefused);
}

TEST_F(SqliteTierTest, ReplacesAndErases) {
  auto tier = Open();
  ASSERT_TRUE(PutAndWait(*tier, MakeEntry(KeyOf(1), std::string(200'000, 'a'))));
  const auto full = tier->Stats().bytes;
  ASSERT_TRUE(PutAndWait(*tier, MakeEntry(KeyOf(1), "small")));
  EXPECT_EQ((**tier->Get(KeyOf(1))).blob("ptx"), "small");
  EXPECT_LT(tier->Stats().bytes, full) << "the old body is gone";
  EXPECT_EQ(tier->Stats().entries, 1u);
  EXPECT_EQ(tier->Erase(KeyOf(1)), true);
  EXPECT_EQ(tier->Erase(KeyOf(1)), false);
  EXPECT_FALSE(tier->Get(KeyOf(1))->has_value());
  EXPECT_EQ(tier->Stats().entries, 0u);
}

TEST_F(SqliteTierTest, EqualBodiesAreStoredOnce) {
  auto tier = Open();
  const std::string body = testing::RandomBytes(300'000, 1);
  ASSERT_TRUE(PutAndWait(*tier, MakeEntry(KeyOf(0), body)));
  const auto one = tier->Stats().bytes;
  for (int i = 1; i < 10; ++i) ASSERT_TRUE(PutAndWait(*tier, MakeEntry(KeyOf(i), body, testing::Numbered("m", i))));
  EXPECT_LT(tier->Stats().bytes, one + 100'000);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(tier->Erase(KeyOf(i)), true);
  EXPECT_EQ((**tier->Get(KeyOf(9))).blob("ptx"), body) << "it stays until its last entry goes";
}

TEST_F(SqliteTierTest, EvictionKeepsTheBoundAndTheRecentlyUsed) {
  options.capacity = 4 << 20;
  options.touch_interval = std::chrono::hours(1);  // eviction itself must write the uses
  auto tier = Open();
  for (int i = 0; i < 200; ++i) {
    clock.Advance(std::chrono::seconds(1));
    ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(i, 50'000)));
    ASSERT_TRUE(tier->Get(KeyOf(0))->has_value()) << "used all the time, after " << i;
    ASSERT_LE(tier->Stats().bytes, options.capacity);
  }
  const TierStats stats = tier->Stats();
  EXPECT_GT(stats.evictions, 100u);
  EXPECT_EQ(stats.entries + stats.evictions, 200u);
  EXPECT_GT(stats.entries, 40u) << "no more is evicted than needed";
  EXPECT_TRUE(tier->Get(KeyOf(199))->has_value());
  EXPECT_FALSE(tier->Get(KeyOf(1))->has_value());
  tier.reset();
  EXPECT_LT(std::filesystem::file_size(options.directory / "kiln.db"), options.capacity + (1 << 20));
}

TEST_F(SqliteTierTest, AClockThatJumpsDoesNotDecideWhatIsEvicted) {
  options.capacity = 4 << 20;
  options.touch_interval = std::chrono::hours(1);
  auto tier = Open();
  clock.Set(std::chrono::years(10));
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(i, 50'000)));
  clock.Set(-std::chrono::years(30));
  for (int i = 30; i < 130; ++i) {
    if (i % 7 == 0) clock.Set(std::chrono::hours(i % 2 == 0 ? 1000 : -1000));
    ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(i, 50'000)));
    ASSERT_TRUE(tier->Get(KeyOf(3))->has_value()) << "used all the time, after " << i;
    ASSERT_TRUE(tier->Get(KeyOf(i))->has_value()) << "new";
  }
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(tier->Get(KeyOf(i))->has_value(), i == 3) << i << ": evicted, if it has not been used since the clock was wrong";
  }
  EXPECT_LE(tier->Stats().bytes, options.capacity);
  EXPECT_EQ(tier->Stats().errors, 0u);
}

TEST_F(SqliteTierTest, RefusesWhatCannotFit) {
  options.capacity = 1 << 20;
  auto tier = Open();
  const auto outcome = PutAndWait(*tier, NumberedEntry(1, 600'000));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kInvalid);
}

TEST_F(SqliteTierTest, UsesAreWrittenInBatches) {
  auto tier = Open();
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1)));
  const WallTime created = clock.WallNow();
  clock.Advance(std::chrono::seconds(1));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(tier->Get(KeyOf(1))->has_value());
  ASSERT_TRUE(tier->Peek(KeyOf(1))->has_value());
  ASSERT_TRUE(tier->Flush());
  const auto listed = tier->List({});
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().created, created);
  EXPECT_EQ(listed->front().last_used, clock.WallNow());
  EXPECT_EQ(listed->front().hits, 3u) << "a peek is no use";
}

TEST_F(SqliteTierTest, ListsInOrderWithFilterAndLimit) {
  auto tier = Open();
  for (int i = 0; i < 600; ++i) tier->Put(NumberedEntry(i, 100));
  ASSERT_TRUE(tier->Flush());
  const auto all = tier->List({});
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 600u);
  EXPECT_TRUE(std::ranges::is_sorted(*all, {}, &EntryInfo::key));
  EXPECT_EQ(all->front().digest, (**tier->Get(all->front().key)).digest());
  EXPECT_TRUE(all->front().metadata.starts_with("metadata of "));
  const auto sevens = [](const EntryInfo& info) { return info.metadata.ends_with("7"); };
  EXPECT_EQ(tier->List({.accept = sevens})->size(), 60u);
  EXPECT_EQ(tier->List({.limit = 5, .accept = sevens})->size(), 5u);
  EXPECT_EQ(tier->List({.after = (*all)[9].key, .limit = 5})->front().key, (*all)[10].key);
}

TEST_F(SqliteTierTest, GcReachesItsTargetAndShrinksTheFile) {
  auto tier = Open();
  for (int i = 0; i < 200; ++i) {
    clock.Advance(std::chrono::seconds(1));
    tier->Put(NumberedEntry(i, 50'000));
    if (i % 20 == 0) {
      ASSERT_TRUE(tier->Flush());
    }
  }
  ASSERT_TRUE(tier->Flush());
  const auto report = tier->Gc(3 << 20);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_GT(report->bytes_before, 9u << 20);
  EXPECT_LE(report->bytes_after, 3u << 20);
  EXPECT_EQ(tier->Stats().entries, 200 - report->evicted);
  EXPECT_TRUE(tier->Get(KeyOf(199))->has_value());
  EXPECT_FALSE(tier->Get(KeyOf(0))->has_value());
  ASSERT_TRUE(tier->Gc(0)) << "an empty store has pages of its own; it ends all the same";
  EXPECT_EQ(tier->Stats().entries, 0u);
  tier.reset();
  EXPECT_LT(std::filesystem::file_size(options.directory / "kiln.db"), 1u << 20);
}

TEST_F(SqliteTierTest, DropsWritesWhenTooManyWait) {
  options.max_queued_bytes = 1 << 20;
  options.max_batch_bytes = 1;
  auto tier = Open();
  std::atomic<int> stored = 0, dropped = 0;
  for (int i = 0; i < 200; ++i) {
    tier->Put(NumberedEntry(i % 8, 200'000), [&](std::expected<void, Error> outcome) {
      if (outcome) ++stored;
      else if (outcome.error().code == ErrorCode::kOverloaded) ++dropped;
    });
  }
  tier.reset();
  EXPECT_EQ(stored + dropped, 200);
  EXPECT_GT(stored, 0);
}

TEST_F(SqliteTierTest, ReadersSeeWholeEntriesWhileOneWrites) {
  options.capacity = 4 << 20;  // evicting all the while
  options.checkpoint_bytes = 256 << 10;
  options.wal_limit = 1 << 20;
  auto tier = Open();
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> hits = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&, t] {
      for (int i = t; !stop; ++i) {
        const int number = i % 150;
        const auto found = tier->Get(KeyOf(number));
        ASSERT_TRUE(found) << found.error().message;
        if (!*found) continue;
        ASSERT_EQ((*found)->blob("ptx"), testing::RandomBytes(40'000, static_cast<std::uint64_t>(number)));
        ++hits;
      }
    });
  }
  for (int i = 0; i < 600; ++i) {
    clock.Advance(std::chrono::milliseconds(1));
    ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(i % 150, 40'000)));
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_GT(hits, 0u);
  const TierStats stats = tier->Stats();
  EXPECT_LE(stats.bytes, options.capacity);
  EXPECT_EQ(stats.corrupt, 0u);
  EXPECT_EQ(stats.errors, 0u);
  EXPECT_TRUE(tier->Verify()->corrupt == 0);
}

TEST_F(SqliteTierTest, OneProcessAtATime) {
  EXPECT_FALSE(IsHeld(options.directory)) << "there is nothing yet";
  auto tier = Open();
  EXPECT_TRUE(IsHeld(options.directory));
  const auto second = SqliteTier::Open(options, clock);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kRefused);
  EXPECT_NE(second.error().message.find(Numbered("pid ", getpid())), std::string::npos) << second.error().message;
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1))) << "the first is not disturbed";
  tier.reset();
  EXPECT_FALSE(IsHeld(options.directory));
  EXPECT_TRUE(Open()->Get(KeyOf(1))->has_value());
}

TEST_F(SqliteTierTest, RefusesANetworkFileSystem) {
  for (const std::uint64_t shared : {0x6969, 0x65735546, 0x7461636f, 0x01161970}) {  // NFS, FUSE, OCFS2, GFS2
    options.filesystem_type = [shared](const auto&) { return shared; };
    const auto tier = SqliteTier::Open(options, clock);
    ASSERT_FALSE(tier) << shared;
    EXPECT_EQ(tier.error().code, ErrorCode::kRefused);
  }
  for (const std::uint64_t local : {0xef53, 0x794c7630, 0x01021994}) {  // ext4, overlayfs, tmpfs
    options.filesystem_type = [local](const auto&) { return local; };
    EXPECT_TRUE(SqliteTier::Open(options, clock)) << local;
  }
}

}  // namespace
}  // namespace kiln::cache
