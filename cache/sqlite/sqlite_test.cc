// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite.h"

#include <gtest/gtest.h>

#include <fstream>

#include "cache/testing.h"

namespace kiln::cache::sqlite {
namespace {

using cache::testing::TemporaryDirectory;

TEST(Sqlite, BindsAndReadsBytes) {
  TemporaryDirectory directory;
  auto db = Connection::Open(directory / "a.db", OpenMode::kCreate);
  ASSERT_TRUE(db) << db.error().message;
  ASSERT_TRUE(db->Execute("CREATE TABLE t(n INTEGER, b BLOB)"));
  auto insert = db->Prepare("INSERT INTO t VALUES(?1, ?2)");
  ASSERT_TRUE(insert);
  const std::string bytes("a\0b", 3);
  ASSERT_TRUE(Query(*insert).Bind(1, 7).Bind(2, bytes).Run());
  ASSERT_TRUE(Query(*insert).Bind(1, 8).Bind(2, std::string_view()).Run());
  ASSERT_TRUE(Query(*insert).Bind(1, 9).Run()) << "bindings do not stay from one query to the next";
  auto select = db->Prepare("SELECT n, b FROM t ORDER BY n");
  Query query(*select);
  ASSERT_TRUE(*query.Step());
  EXPECT_EQ(query.Integer(0), 7);
  EXPECT_EQ(query.Blob(1), bytes);
  ASSERT_TRUE(*query.Step());
  EXPECT_FALSE(query.IsNull(1)) << "an empty blob is not NULL";
  ASSERT_TRUE(*query.Step());
  EXPECT_TRUE(query.IsNull(1));
  EXPECT_FALSE(*query.Step());
}

TEST(Sqlite, ErrorsAreTold) {
  TemporaryDirectory directory;
  EXPECT_EQ(Connection::Open(directory / "missing.db", OpenMode::kRead).error().code, ErrorCode::kUnreachable);
  std::ofstream(directory / "garbage.db") << std::string(40000, 'x');
  auto garbage = Connection::Open(directory / "garbage.db", OpenMode::kWrite);
  ASSERT_TRUE(garbage) << "SQLite looks at the file when it needs it";
  EXPECT_EQ(garbage->Integer("PRAGMA user_version").error().code, ErrorCode::kDamaged);
  auto db = Connection::Open(directory / "a.db", OpenMode::kCreate);
  ASSERT_TRUE(db->Execute("PRAGMA page_size = 4096; PRAGMA max_page_count = 4; CREATE TABLE t(b BLOB NOT NULL)"));
  EXPECT_EQ(db->Execute("INSERT INTO t VALUES(zeroblob(100000))").error().code, ErrorCode::kFull);
  EXPECT_EQ(db->Execute("INSERT INTO t VALUES(NULL)").error().code, ErrorCode::kInvalid);
  EXPECT_FALSE(db->Prepare("no sql"));
}

}  // namespace
}  // namespace kiln::cache::sqlite
