// SPDX-License-Identifier: Apache-2.0
//
// Stores of other versions than ours.
#include <gtest/gtest.h>

#include "cache/sqlite/sqlite.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/testing/store.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::KeyOf;
using testing::NumberedEntry;

class SqliteUpgradeTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    options.directory = directory / "store";
    fs::create_directories(options.directory);
  }

  sqlite::Connection Database() { return *sqlite::Connection::Open(options.directory / "kiln.db", sqlite::OpenMode::kCreate); }

  // Entries 0 … count - 1; the higher the number, the longer ago it was used.
  void MakeVersion1(int count) {
    auto db = Database();
    ASSERT_TRUE(db.Execute(testing::kVersion1));
    auto insert_entry = db.Prepare("INSERT INTO entry VALUES(?1, ?2, ?3, 5, ?4, ?5, ?6)");
    auto insert_blob = db.Prepare("INSERT INTO blob VALUES(?1, ?2)");
    for (int i = 0; i < count; ++i) {
      const Entry entry = NumberedEntry(i, 50'000);
      ASSERT_TRUE(sqlite::Query(*insert_blob).Bind(1, entry.body_digest().view()).Bind(2, entry.body()).Run());
      ASSERT_TRUE(sqlite::Query(*insert_entry)
                      .Bind(1, entry.key().view())
                      .Bind(2, entry.body_digest().view())
                      .Bind(3, static_cast<std::int64_t>(entry.sealed().size()))
                      .Bind(4, std::int64_t{1'000'000 - i})
                      .Bind(5, std::int64_t{i})
                      .Bind(6, entry.head())
                      .Run());
    }
  }

  SqliteOptions options;
};

TEST_F(SqliteUpgradeTest, AnOlderStoreIsUpgradedWithAllThatIsInIt) {
  MakeVersion1(40);
  for (int round = 0; round < 2; ++round) {
    auto tier = SqliteTier::Open(options, clock);
    ASSERT_TRUE(tier) << tier.error().message;
    EXPECT_EQ((*tier)->Stats().set_aside, 0u);
    const auto listed = (*tier)->List({});
    ASSERT_EQ(listed->size(), 40u);
    for (const EntryInfo& info : *listed) {
      EXPECT_EQ(info.created.time_since_epoch().count(), 5);
      EXPECT_EQ(info.hits, static_cast<std::uint64_t>(1'000'000 - info.last_used.time_since_epoch().count()));
    }
    for (int i = 0; i < 40; ++i) EXPECT_EQ((**(*tier)->Peek(KeyOf(i))).sealed(), NumberedEntry(i, 50'000).sealed()) << i;
    EXPECT_EQ((*tier)->Verify()->corrupt, 0u);
  }
}

TEST_F(SqliteUpgradeTest, WhatWasUsedLongestAgoIsStillEvictedFirst) {
  MakeVersion1(40);
  options.capacity = 2'500'000;
  auto tier = SqliteTier::Open(options, clock);
  ASSERT_TRUE(tier) << tier.error().message;
  ASSERT_TRUE((*tier)->Gc(1'500'000));
  EXPECT_TRUE((*tier)->Get(KeyOf(0))->has_value());
  EXPECT_FALSE((*tier)->Get(KeyOf(39))->has_value());
  ASSERT_TRUE(PutAndWait(**tier, NumberedEntry(1000, 50'000)));
  EXPECT_TRUE((*tier)->Get(KeyOf(1000))->has_value());
}

TEST_F(SqliteUpgradeTest, ANewerStoreIsRefusedAndLeftAlone) {
  SqliteTier::Open(options, clock)->reset();
  ASSERT_TRUE(Database().Execute("PRAGMA user_version = 3; UPDATE store SET version = 3;"));
  const auto refused = SqliteTier::Open(options, clock);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  EXPECT_NE(refused.error().message.find("version 3"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(fs::exists(options.directory / "kiln.db.corrupt-1"));
  EXPECT_EQ(Database().Integer("PRAGMA user_version"), 3);
}

TEST_F(SqliteUpgradeTest, ADamagedVersionIsDamage) {
  SqliteTier::Open(options, clock)->reset();
  ASSERT_TRUE(Database().Execute("PRAGMA user_version = 18;"));
  auto tier = SqliteTier::Open(options, clock);
  ASSERT_TRUE(tier) << tier.error().message;
  EXPECT_EQ((*tier)->Stats().set_aside, 1u);
}

}  // namespace
}  // namespace kiln::cache
