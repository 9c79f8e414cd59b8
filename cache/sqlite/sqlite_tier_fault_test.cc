// SPDX-License-Identifier: Apache-2.0
//
// How a store behaves when its files are damaged, by a second connection or by plain file operations, and when the disk is full.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "cache/sqlite/sqlite.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/testing.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::KeyOf;
using testing::MakeEntry;
using testing::ManualClock;
using testing::NumberedEntry;
using testing::TemporaryDirectory;

class SqliteFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options.directory = directory / "store";
    options.on_event = [this](const Error&) { ++events; };
  }

  std::unique_ptr<SqliteTier> Open() {
    auto tier = SqliteTier::Open(options, clock);
    if (!tier) ADD_FAILURE() << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }

  std::unique_ptr<SqliteTier> OpenWith(int entries, std::size_t size = 50'000) {
    auto tier = Open();
    for (int i = 0; i < entries; ++i) tier->Put(NumberedEntry(i, size));
    EXPECT_TRUE(tier->Flush());
    return tier;
  }

  fs::path database() const { return options.directory / "kiln.db"; }

  // Changes the live store behind its back.
  void Sql(const std::string& statement, const Digest& key) {
    auto db = sqlite::Connection::Open(database(), sqlite::OpenMode::kWrite);
    ASSERT_TRUE(db);
    db->SetBusyTimeout(std::chrono::seconds(5));
    auto prepared = db->Prepare(statement);
    ASSERT_TRUE(prepared) << prepared.error().message;
    const auto run = sqlite::Query(*prepared).Bind(1, key.view()).Run();
    ASSERT_TRUE(run) << run.error().message;
  }

  void Overwrite(std::uint64_t offset, const std::string& bytes) {
    std::fstream file(database(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }

  // The second half of the file: opening does not come near it, a check of the structure does.
  void DamageWhatACheckReads() {
    const auto size = fs::file_size(database());
    Overwrite(size / 2 / 16384 * 16384, std::string(size / 4, '\xee'));
  }

  // Until the background has done what it should have done at once.
  template <class Condition>
  bool Eventually(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < until) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // between looks
    }
    return condition();
  }

  TemporaryDirectory directory;
  ManualClock clock;
  SqliteOptions options;
  std::atomic<int> events = 0;
};

constexpr char kDamageBody[] =
    "UPDATE blob SET bytes = CAST(zeroblob(10) || substr(bytes, 11) AS BLOB) "
    "WHERE digest = (SELECT body FROM entry WHERE key = ?1)";
constexpr char kShortenBody[] = "UPDATE blob SET bytes = substr(bytes, 1, 100) WHERE digest = (SELECT body FROM entry WHERE key = ?1)";
constexpr char kDropBody[] = "DELETE FROM blob WHERE digest = (SELECT body FROM entry WHERE key = ?1)";
constexpr char kDamageHead[] = "UPDATE entry SET head = zeroblob(100) WHERE key = ?1";
constexpr char kEmptyHead[] = "UPDATE entry SET head = zeroblob(0) WHERE key = ?1";

class CorruptRowTest : public SqliteFaultTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CorruptRowTest, IsEvictedAndCanBePutAnew) {
  auto tier = OpenWith(3);
  Sql(GetParam(), KeyOf(1));
  const auto found = tier->Get(KeyOf(1));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
  ASSERT_TRUE(tier->Flush());
  EXPECT_FALSE(tier->Get(KeyOf(1))->has_value()) << "evicted";
  EXPECT_EQ(tier->Stats().corrupt, 1u);
  EXPECT_EQ(tier->Stats().entries, 2u);
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1, 50'000)));
  EXPECT_EQ((**tier->Get(KeyOf(1))).sealed(), NumberedEntry(1, 50'000).sealed());
  EXPECT_TRUE(tier->Get(KeyOf(0))->has_value());
  EXPECT_TRUE(tier->Get(KeyOf(2))->has_value());
  EXPECT_EQ(tier->Stats().set_aside, 0u) << "a row is not the store";
}

INSTANTIATE_TEST_SUITE_P(Rows, CorruptRowTest, ::testing::Values(kDamageBody, kShortenBody, kDropBody, kDamageHead, kEmptyHead));

TEST_F(SqliteFaultTest, AnEntryUnderAnotherKeyIsCorrupt) {
  auto tier = OpenWith(2);
  Sql("DELETE FROM entry WHERE key = ?1", KeyOf(1));
  auto db = sqlite::Connection::Open(database(), sqlite::OpenMode::kWrite);
  auto move = db->Prepare("UPDATE entry SET key = ?1");
  ASSERT_TRUE(sqlite::Query(*move).Bind(1, KeyOf(1).view()).Run());
  const auto found = tier->Get(KeyOf(1));
  ASSERT_FALSE(found) << "entry 0 must not be served as entry 1";
  EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
}

TEST_F(SqliteFaultTest, AnEvictionDoesNotHitTheReplacement) {
  auto tier = OpenWith(1);
  Sql(kDamageHead, KeyOf(0));
  tier->Put(NumberedEntry(0, 50'000));
  (void)tier->Get(KeyOf(0));  // may have read the damaged one still
  ASSERT_TRUE(tier->Flush());
  EXPECT_TRUE(tier->Get(KeyOf(0))->has_value());
}

TEST_F(SqliteFaultTest, APutRepairsADamagedBodyThatItShares) {
  auto tier = OpenWith(1);
  Sql(kDamageBody, KeyOf(0));
  const Entry other = MakeEntry(KeyOf(1), NumberedEntry(0, 50'000).blob("ptx"), "same body, other key");
  ASSERT_TRUE(PutAndWait(*tier, other));
  EXPECT_EQ((**tier->Get(KeyOf(1))).sealed(), other.sealed());
  EXPECT_EQ((**tier->Get(KeyOf(0))).sealed(), NumberedEntry(0, 50'000).sealed());
}

TEST_F(SqliteFaultTest, VerifyFindsWhatNobodyAskedFor) {
  auto tier = OpenWith(300, 5'000);
  for (const int number : {7, 70, 170}) Sql(kDamageBody, KeyOf(number));
  const auto report = tier->Verify();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->entries, 300u);
  EXPECT_EQ(report->corrupt, 3u);
  EXPECT_FALSE(report->store_damaged);
  EXPECT_EQ(std::set<Digest>(report->evicted.begin(), report->evicted.end()), (std::set<Digest>{KeyOf(7), KeyOf(70), KeyOf(170)}));
  EXPECT_EQ(tier->Stats().entries, 297u);
  EXPECT_EQ(tier->Verify()->corrupt, 0u);
}

TEST_F(SqliteFaultTest, GarbageIsSetAsideAtOpen) {
  fs::create_directories(options.directory);
  std::ofstream(database()) << testing::RandomBytes(100'000, 1);
  for (int i = 0; i < 2; ++i) {
    auto tier = Open();
    EXPECT_EQ(tier->Stats().set_aside, i == 0 ? 1u : 0u);
    ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1)));
  }
  EXPECT_EQ(fs::file_size(options.directory / "kiln.db.corrupt-1"), 100'000u) << "kept as it was";
}

TEST_F(SqliteFaultTest, SomebodyElsesDatabaseIsSetAside) {
  fs::create_directories(options.directory);
  {
    auto db = sqlite::Connection::Open(database(), sqlite::OpenMode::kCreate);
    ASSERT_TRUE(db->Execute("CREATE TABLE photos(name)"));
  }
  auto tier = Open();
  EXPECT_EQ(tier->Stats().set_aside, 1u);
  EXPECT_TRUE(fs::exists(options.directory / "kiln.db.corrupt-1"));
}

TEST_F(SqliteFaultTest, OnlyTheNewestTwoAreKept) {
  fs::create_directories(options.directory);
  for (int i = 0; i < 5; ++i) {
    std::ofstream(database(), std::ios::trunc) << testing::RandomBytes(100'000, 1);
    (void)Open();
  }
  EXPECT_FALSE(fs::exists(options.directory / "kiln.db.corrupt-3"));
  EXPECT_TRUE(fs::exists(options.directory / "kiln.db.corrupt-4"));
  EXPECT_TRUE(fs::exists(options.directory / "kiln.db.corrupt-5"));
}

TEST_F(SqliteFaultTest, ATruncatedFileIsSetAside) {
  OpenWith(50).reset();
  fs::resize_file(database(), fs::file_size(database()) / 2 + 100);
  auto tier = Open();
  for (int i = 0; i < 50; ++i) (void)tier->Get(KeyOf(i));
  EXPECT_TRUE(Eventually([&] { return tier->Stats().set_aside == 1; }));
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1)));
  EXPECT_TRUE(tier->Get(KeyOf(1))->has_value());
}

TEST_F(SqliteFaultTest, AnEmptyFileIsAnEmptyStore) {
  OpenWith(5).reset();
  fs::resize_file(database(), 0);
  auto tier = Open();
  EXPECT_FALSE(tier->Get(KeyOf(1))->has_value());
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1)));
}

TEST_F(SqliteFaultTest, DamageInUseIsSetAsideAndServiceGoesOn) {
  OpenWith(100).reset();
  auto tier = Open();
  ASSERT_TRUE(tier->Get(KeyOf(0))->has_value());
  // Every page but the first, so that whatever is read next is damaged.
  Overwrite(16384, std::string(fs::file_size(database()) - 16384, '\xee'));
  std::atomic<bool> wrong = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto found = tier->Get(KeyOf((i + t * 25) % 100));
        if (found && *found && (*found)->key() != KeyOf((i + t * 25) % 100)) wrong = true;
        if (!found && found.error().code == ErrorCode::kUnreachable) wrong = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
  EXPECT_TRUE(Eventually([&] { return tier->Stats().set_aside == 1; }));
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1)));
  EXPECT_TRUE(tier->Get(KeyOf(1))->has_value());
  EXPECT_EQ(tier->Stats().entries, 1u);
  EXPECT_EQ(tier->Stats().set_aside, 1u) << "once, however many met it";
  EXPECT_EQ(tier->losses(), 1u);
  EXPECT_EQ(events, 1);
  EXPECT_TRUE(fs::exists(options.directory / "kiln.db.corrupt-1"));
}

TEST_F(SqliteFaultTest, AnUncleanEndIsCheckedInTheBackground) {
  OpenWith(100).reset();
  DamageWhatACheckReads();
  std::ofstream(options.directory / "open");
  auto tier = Open();
  EXPECT_TRUE(Eventually([&] { return tier->Stats().set_aside == 1; }));
}

TEST_F(SqliteFaultTest, ACleanEndIsNot) {
  OpenWith(100).reset();
  DamageWhatACheckReads();
  auto tier = Open();
  EXPECT_TRUE(fs::exists(options.directory / "open"));
  tier.reset();
  EXPECT_FALSE(fs::exists(options.directory / "open")) << "a check that was due has been cut off: the mark stays for the next start";
  EXPECT_EQ(events, 0) << "a check that was due has found the damage";
}

TEST_F(SqliteFaultTest, AFullStoreReadsOnAndTriesAgainLater) {
  options.hard_limit = 2 << 20;
  options.retry_after = std::chrono::seconds(10);
  auto tier = Open();
  int stored = 0;
  std::expected<void, Error> outcome;
  for (; stored < 100; ++stored) {
    outcome = PutAndWait(*tier, NumberedEntry(stored, 50'000));
    if (!outcome) break;
  }
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kFull);
  EXPECT_GT(stored, 20);
  EXPECT_TRUE(tier->Stats().read_only);
  EXPECT_EQ(events, 1);
  for (int i = 0; i < stored; ++i) ASSERT_TRUE(tier->Get(KeyOf(i))->has_value()) << i;

  ASSERT_EQ(PutAndWait(*tier, NumberedEntry(1000, 10)).error().code, ErrorCode::kFull) << "not tried before its time";
  ASSERT_EQ(tier->Erase(KeyOf(0)), true) << "but erasing makes room";
  ASSERT_EQ(tier->Erase(KeyOf(1)), true);
  clock.Advance(std::chrono::seconds(11));
  ASSERT_TRUE(PutAndWait(*tier, NumberedEntry(1000, 50'000)));
  EXPECT_FALSE(tier->Stats().read_only);
  EXPECT_EQ(events, 2);
  EXPECT_EQ(tier->Stats().set_aside, 0u);
}

}  // namespace
}  // namespace kiln::cache
