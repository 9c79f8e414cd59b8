// SPDX-License-Identifier: Apache-2.0
//
// What is in the database, and every statement that touches it.
//
//   entry  key → body, sizes, times, head     small rows; the only ones that a use or a listing touches
//   blob   digest of the body → body          large rows, value last, so that nothing is behind the overflow pages
//
// Entries with equal bodies share a row of `blob`; it goes when its last entry goes. Neither table is WITHOUT ROWID:
// there, large values would sit in the inner pages of the tree. `used` numbers the uses: eviction walks its index, and no clock
// has a say in it. Updating a use touches that index and a row of `entry`, never a blob.
//
// A store of an older version is upgraded when it is opened, one of a newer version refused.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/entry.h"
#include "cache/error.h"
#include "cache/sqlite/sqlite.h"
#include "cache/sqlite/sqlite_tier.h"

namespace kiln::cache {

// A connection that reads. Not shared between threads.
class Reader {
 public:
  // `writable`: whether the file's directory is; where it is not, nobody may write to the file.
  static std::expected<Reader, Error> Open(const std::filesystem::path& path, const SqliteOptions& options, bool writable);

  // How many entries there are, and the bytes of pages that hold something.
  struct Size {
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;
  };
  // kRefused or kDamaged where the store's version is not this one's: nobody can upgrade it here.
  std::expected<Size, Error> Measure();

  // The sealed bytes as they are stored, not yet verified; nothing when there is no such entry. An entry whose blob is
  // missing gives its head alone, which does not unseal.
  std::expected<std::optional<std::string>, Error> Get(const Digest& key);

  // At most `limit` entries behind `after`, in the order of their keys.
  std::expected<std::vector<EntryInfo>, Error> List(const std::optional<Digest>& after, std::size_t limit);

  // What is wrong with the structure of the file; empty when nothing is. Reads all of it.
  std::expected<std::string, Error> QuickCheck();

  // Whether all of the log was copied. Waits only briefly for others to leave the log: the writer may be held up.
  std::expected<bool, Error> Checkpoint(sqlite::CheckpointMode mode);
  void Interrupt() { db_.Interrupt(); }

 private:
  explicit Reader(sqlite::Connection db) : db_(std::move(db)) {}

  sqlite::Connection db_;
  sqlite::Statement get_;
  sqlite::Statement list_;
};

// The connection that writes. Between Begin and Commit nothing is visible to readers; a failed transaction must be
// rolled back.
class WriterConnection {
 public:
  // Creates the database when there is none, and upgrades one of an older version. kDamaged when the file is no store, kRefused
  // when it is one of a newer version.
  static std::expected<WriterConnection, Error> Open(const std::filesystem::path& path, const SqliteOptions& options);

  std::expected<void, Error> Begin();
  std::expected<void, Error> Commit();
  void Rollback();

  // Whether the key is new.
  std::expected<bool, Error> Put(const Entry& entry, WallTime now);
  std::expected<bool, Error> Erase(const Digest& key);
  // What is touched later is evicted later.
  std::expected<void, Error> Touch(const Digest& key, WallTime last_used, std::uint64_t hits);

  // Removes the blob and every entry that relies on it; how many entries that were.
  std::expected<std::uint64_t, Error> EraseWithBody(const Digest& key);

  // The stored bytes, as Reader::Get gives them, as of this transaction.
  std::expected<std::optional<std::string>, Error> Get(const Digest& key);

  // Removes the least recently used entry; false when there is none.
  std::expected<bool, Error> EvictOne();

  std::expected<std::uint64_t, Error> CountEntries();

  // Bytes of pages that hold something.
  std::expected<std::uint64_t, Error> UsedBytes();

  // Gives up to `pages` free pages at the end of the file back to the file system; whether free pages are left.
  std::expected<bool, Error> Shrink(int pages);

 private:
  explicit WriterConnection(sqlite::Connection db) : db_(std::move(db)) {}
  std::expected<void, Error> Prepare();
  std::expected<std::optional<std::string>, Error> BodyOf(const Digest& key);
  std::expected<void, Error> DropOrphan(std::string_view body);

  sqlite::Connection db_;
  std::int64_t last_use_ = 0;  // the number of the newest use
  sqlite::Statement begin_, commit_, rollback_;
  sqlite::Statement get_, find_, insert_blob_, upsert_entry_, touch_;
  sqlite::Statement delete_entry_, delete_orphan_, delete_by_body_, delete_blob_, oldest_;
  sqlite::Statement count_, used_pages_, free_pages_;
};

}  // namespace kiln::cache
