// SPDX-License-Identifier: Apache-2.0
//
// For the tests of stores.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "cache/sqlite/sqlite_tier.h"
#include "cache/testing.h"

namespace kiln::cache::testing {

// As version 1 of the store created it.
inline constexpr char kVersion1[] = R"sql(
  PRAGMA page_size = 16384; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;
  CREATE TABLE entry(
    key BLOB NOT NULL PRIMARY KEY, body BLOB NOT NULL, size INTEGER NOT NULL, created INTEGER NOT NULL,
    last_used INTEGER NOT NULL, hits INTEGER NOT NULL, head BLOB NOT NULL
  ) STRICT;
  CREATE INDEX entry_by_use ON entry(last_used);
  CREATE INDEX entry_by_body ON entry(body);
  CREATE TABLE blob(digest BLOB NOT NULL PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
  PRAGMA application_id = 0x4b494c4e;
  PRAGMA user_version = 1;
)sql";

// Stores in a directory of the test's own, by a clock that stands still.
class StoreTest : public ::testing::Test {
 protected:
  // Null, and the test fails, where it cannot be opened.
  std::unique_ptr<SqliteTier> OpenStore(const SqliteOptions& options) {
    auto tier = SqliteTier::Open(options, clock);
    if (!tier) ADD_FAILURE() << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }

  TemporaryDirectory directory;
  ManualClock clock;
};

}  // namespace kiln::cache::testing
