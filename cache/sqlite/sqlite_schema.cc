// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "cache/try.h"

namespace kiln::cache {
namespace {

using sqlite::Connection;
using sqlite::OpenMode;
using sqlite::Query;
using sqlite::Statement;

constexpr std::int64_t kApplicationId = 0x4b494c4e;  // "KILN"
constexpr std::int64_t kSchemaVersion = 2;
constexpr std::int64_t kLastUse = std::int64_t{1} << 62;  // of a row that is not damaged
constexpr std::int64_t kPageSize = 16384;

constexpr char kSchema[] = R"sql(
  CREATE TABLE entry(
    key       BLOB    NOT NULL PRIMARY KEY,
    body      BLOB    NOT NULL,
    size      INTEGER NOT NULL,
    created   INTEGER NOT NULL,
    last_used INTEGER NOT NULL,
    hits      INTEGER NOT NULL,
    head      BLOB    NOT NULL,
    used      INTEGER NOT NULL
  ) STRICT;
  CREATE INDEX entry_by_use ON entry(used);
  CREATE INDEX entry_by_body ON entry(body);
  CREATE TABLE blob(
    digest BLOB NOT NULL PRIMARY KEY,
    bytes  BLOB NOT NULL
  ) STRICT;
  CREATE TABLE store(version INTEGER NOT NULL) STRICT;
  INSERT INTO store VALUES(2);
)sql";

// The statements that upgrade a store from version N to N + 1; the first is for N = 1.
constexpr const char* kUpgrades[] = {
    // Entries were evicted by the time of their last use, which a clock that was wrong for a while spoils.
    R"sql(
      ALTER TABLE entry ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
      UPDATE entry SET used = place FROM (SELECT rowid AS row, row_number() OVER (ORDER BY last_used) AS place FROM entry)
        WHERE entry.rowid = row;
      DROP INDEX entry_by_use;
      CREATE INDEX entry_by_use ON entry(used);
      CREATE TABLE store(version INTEGER NOT NULL) STRICT;
      INSERT INTO store VALUES(2);
    )sql",
};
static_assert(std::size(kUpgrades) == kSchemaVersion - 1);

constexpr std::string_view kUsedPages = "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count";

constexpr std::string_view kGet = "SELECT e.head, b.bytes FROM entry e LEFT JOIN blob b ON b.digest = e.body WHERE e.key = ?1";

// A reader's or writer's private page cache. It is small, for what it caches the system caches too.
constexpr char kCommonPragmas[] = "PRAGMA cache_size = -2048; PRAGMA temp_store = MEMORY; PRAGMA cell_size_check = ON;";

constexpr auto kReaderBusy = std::chrono::milliseconds(1000);
constexpr auto kCheckpointBusy = std::chrono::milliseconds(50);
constexpr auto kWriterBusy = std::chrono::milliseconds(5000);

std::int64_t Micros(WallTime time) { return time.time_since_epoch().count(); }
WallTime FromMicros(std::int64_t micros) { return WallTime(std::chrono::microseconds(micros)); }

std::expected<std::optional<std::string>, Error> RunGet(Statement& statement, const Digest& key) {
  Query query(statement);
  KILN_ASSIGN_OR_RETURN(const bool row, query.Bind(1, key.view()).Step());
  if (!row) return std::nullopt;
  const std::string_view head = query.Blob(0);
  const std::string_view body = query.Blob(1);
  std::string sealed;
  sealed.reserve(head.size() + body.size());
  sealed += head;
  sealed += body;
  return sealed;
}

std::expected<void, Error> PrepareAs(Connection& db, Statement& statement, std::string_view sql) {
  KILN_ASSIGN_OR_RETURN(auto prepared, db.Prepare(sql));
  statement = std::move(prepared);
  return {};
}

// The result of a statement that always gives one row.
std::expected<std::int64_t, Error> IntegerOf(Statement& statement) {
  Query query(statement);
  KILN_RETURN_IF_ERROR(query.Step());
  return query.Integer(0);
}

// The version of the store; 0 for an empty database. From version 2 on it is stored twice, so that a damaged number is not taken for that
// of a newer kilnd.
std::expected<std::int64_t, Error> VersionOf(Connection& db) {
  KILN_ASSIGN_OR_RETURN(const auto application, db.Integer("PRAGMA application_id"));
  KILN_ASSIGN_OR_RETURN(const auto version, db.Integer("PRAGMA user_version"));
  KILN_ASSIGN_OR_RETURN(const auto tables, db.Integer("SELECT count(*) FROM sqlite_schema"));
  if (application == 0 && version == 0 && tables == 0) return 0;
  KILN_ASSIGN_OR_RETURN(const auto has_store, db.Integer("SELECT count(*) FROM sqlite_schema WHERE name = 'store'"));
  std::int64_t written = 1;
  if (has_store != 0) {
    KILN_ASSIGN_OR_RETURN(written, db.Integer("SELECT version FROM store"));
  }
  if (application == kApplicationId && version == written && version >= 1) return version;
  return Fail(ErrorCode::kDamaged,
              fmt::format("the database is not a store: application {:#x}, version {}, and {} inside", application, version, written));
}

std::expected<void, Error> Upgrade(Connection& db, std::int64_t from) {
  if (from > kSchemaVersion) {
    return Fail(ErrorCode::kRefused, fmt::format("the store is of version {}, and this kilnd knows versions up to {}: a newer one wrote it. Run that "
                                                 "one, or give this one another directory",
                                                 from, kSchemaVersion));
  }
  for (std::int64_t version = from; version < kSchemaVersion; ++version) {
    KILN_RETURN_IF_ERROR(db.Execute(fmt::format("BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT;", kUpgrades[version - 1], version + 1)));
  }
  return {};
}

// The page size, the vacuum mode and WAL must be chosen before the first table.
std::expected<void, Error> CreateSchema(Connection& db) {
  KILN_RETURN_IF_ERROR(db.Execute(fmt::format("PRAGMA page_size = {}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;", kPageSize)));
  return db.Execute(
      fmt::format("BEGIN IMMEDIATE; {} PRAGMA application_id = {}; PRAGMA user_version = {}; COMMIT;", kSchema, kApplicationId, kSchemaVersion));
}

}  // namespace

std::expected<Reader, Error> Reader::Open(const std::filesystem::path& path, const SqliteOptions& options, bool writable) {
  // Opened for writing if possible: the last connection to close must be able to clean up the log.
  KILN_ASSIGN_OR_RETURN(auto db, Connection::Open(path, writable ? OpenMode::kWrite : OpenMode::kRead));
  db.SetBusyTimeout(kReaderBusy);
  if (!writable) KILN_RETURN_IF_ERROR(db.Execute("PRAGMA locking_mode = EXCLUSIVE;"));
  Reader reader(std::move(db));
  KILN_RETURN_IF_ERROR(
      reader.db_.Execute(fmt::format("{} PRAGMA wal_autocheckpoint = 0; PRAGMA mmap_size = {};", kCommonPragmas, options.mmap_bytes)));
  KILN_RETURN_IF_ERROR(PrepareAs(reader.db_, reader.get_, kGet));
  KILN_RETURN_IF_ERROR(
      PrepareAs(reader.db_, reader.list_, "SELECT key, size, created, last_used, hits, head FROM entry WHERE key > ?1 ORDER BY key LIMIT ?2"));
  return reader;
}

std::expected<Reader::Size, Error> Reader::Measure() {
  KILN_ASSIGN_OR_RETURN(const auto version, VersionOf(db_));
  if (version != kSchemaVersion) {
    return Fail(ErrorCode::kRefused, fmt::format("the store is of version {}, and this kilnd reads version {}; start it once where it may write",
                                                 version, kSchemaVersion));
  }
  KILN_ASSIGN_OR_RETURN(const auto entries, db_.Integer("SELECT count(*) FROM entry"));
  KILN_ASSIGN_OR_RETURN(const auto pages, db_.Integer(kUsedPages));
  return Size{static_cast<std::uint64_t>(entries), static_cast<std::uint64_t>(pages * kPageSize)};
}

std::expected<std::optional<std::string>, Error> Reader::Get(const Digest& key) { return RunGet(get_, key); }

std::expected<std::vector<EntryInfo>, Error> Reader::List(const std::optional<Digest>& after, std::size_t limit) {
  Query query(list_);
  query.Bind(1, after ? after->view() : std::string_view());
  query.Bind(2, static_cast<std::int64_t>(std::min<std::size_t>(limit, INT64_MAX)));
  std::vector<EntryInfo> infos;
  for (;;) {
    KILN_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return infos;
    const auto key = Digest::FromBytes(query.Blob(0));
    if (!key) return Fail(ErrorCode::kDamaged, "a key in the store is not a digest");
    EntryInfo info{.key = *key,
                   .sealed_size = static_cast<std::uint64_t>(query.Integer(1)),
                   .created = FromMicros(query.Integer(2)),
                   .last_used = FromMicros(query.Integer(3)),
                   .hits = static_cast<std::uint64_t>(query.Integer(4))};
    // A head that does not unseal leaves digest and metadata empty. The listing goes on; Verify evicts.
    if (auto head = UnsealHead(query.Blob(5))) {
      info.digest = head->digest;
      info.metadata = std::move(head->metadata);
    }
    infos.push_back(std::move(info));
  }
}

std::expected<bool, Error> Reader::Checkpoint(sqlite::CheckpointMode mode) {
  db_.SetBusyTimeout(kCheckpointBusy);
  auto copied = db_.Checkpoint(mode);
  db_.SetBusyTimeout(kReaderBusy);
  return copied;
}

std::expected<std::string, Error> Reader::QuickCheck() {
  auto text = db_.Text("PRAGMA quick_check(1)");
  if (text && *text == "ok") text->clear();
  return text;
}

std::expected<WriterConnection, Error> WriterConnection::Open(const std::filesystem::path& path, const SqliteOptions& options) {
  KILN_ASSIGN_OR_RETURN(auto db, Connection::Open(path, OpenMode::kCreate));
  db.SetBusyTimeout(kWriterBusy);
  KILN_ASSIGN_OR_RETURN(const auto version, VersionOf(db));
  KILN_RETURN_IF_ERROR(version == 0 ? CreateSchema(db) : Upgrade(db, version));
  WriterConnection writer(std::move(db));
  // secure_delete would overwrite every evicted page with zeros.
  KILN_RETURN_IF_ERROR(
      writer.db_.Execute(fmt::format("{} PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA secure_delete = OFF;", kCommonPragmas)));
  if (options.hard_limit != 0) {
    const std::uint64_t pages = std::max<std::uint64_t>(options.hard_limit / kPageSize, 1);
    KILN_RETURN_IF_ERROR(writer.db_.Execute(fmt::format("PRAGMA max_page_count = {};", pages)));
  }
  KILN_RETURN_IF_ERROR(writer.Prepare());
  KILN_ASSIGN_OR_RETURN(const auto last_use, writer.db_.Integer("SELECT max(used) FROM entry"));
  writer.last_use_ = std::clamp<std::int64_t>(last_use, 0, kLastUse);
  return writer;
}

std::expected<void, Error> WriterConnection::Prepare() {
  const std::pair<Statement*, std::string_view> statements[] = {
      {&begin_, "BEGIN IMMEDIATE"},
      {&commit_, "COMMIT"},
      {&rollback_, "ROLLBACK"},
      {&get_, kGet},
      {&find_, "SELECT body FROM entry WHERE key = ?1"},
      // Bytes that disagree with the digest they are under were damaged, and are repaired.
      {&insert_blob_, "INSERT INTO blob(digest, bytes) VALUES(?1, ?2) ON CONFLICT(digest) DO UPDATE SET bytes = ?2 WHERE bytes <> ?2"},
      {&upsert_entry_,
       "INSERT INTO entry(key, body, size, created, last_used, hits, head, used) VALUES(?1, ?2, ?3, ?4, ?4, 0, ?5, ?6) "
       "ON CONFLICT(key) DO UPDATE SET body = ?2, size = ?3, created = ?4, last_used = ?4, head = ?5, used = ?6"},
      {&touch_, "UPDATE entry SET last_used = ?2, hits = hits + ?3, used = ?4 WHERE key = ?1"},
      {&delete_entry_, "DELETE FROM entry WHERE key = ?1"},
      {&delete_orphan_, "DELETE FROM blob WHERE digest = ?1 AND NOT EXISTS(SELECT 1 FROM entry WHERE body = ?1)"},
      {&delete_by_body_, "DELETE FROM entry WHERE body = ?1"},
      {&delete_blob_, "DELETE FROM blob WHERE digest = ?1"},
      {&oldest_, "SELECT key, body FROM entry ORDER BY used LIMIT 1"},
      {&count_, "SELECT count(*) FROM entry"},
      {&used_pages_, kUsedPages},
      {&free_pages_, "PRAGMA freelist_count"},
  };
  for (const auto& [statement, sql] : statements) {
    KILN_RETURN_IF_ERROR(PrepareAs(db_, *statement, sql));
  }
  return {};
}

std::expected<void, Error> WriterConnection::Begin() { return Query(begin_).Run(); }
std::expected<void, Error> WriterConnection::Commit() { return Query(commit_).Run(); }

void WriterConnection::Rollback() {
  // SQLite has rolled back by itself after some errors.
  if (db_.InTransaction()) (void)Query(rollback_).Run();
}

std::expected<std::optional<std::string>, Error> WriterConnection::BodyOf(const Digest& key) {
  Query find(find_);
  KILN_ASSIGN_OR_RETURN(const bool row, find.Bind(1, key.view()).Step());
  if (!row) return std::nullopt;
  return std::string(find.Blob(0));
}

std::expected<bool, Error> WriterConnection::Put(const Entry& entry, WallTime now) {
  KILN_ASSIGN_OR_RETURN(const auto old_body, BodyOf(entry.key()));
  const std::string_view body = entry.body_digest().view();
  KILN_RETURN_IF_ERROR(Query(insert_blob_).Bind(1, body).Bind(2, entry.body()).Run());
  KILN_RETURN_IF_ERROR(Query(upsert_entry_)
                           .Bind(1, entry.key().view())
                           .Bind(2, body)
                           .Bind(3, static_cast<std::int64_t>(entry.sealed().size()))
                           .Bind(4, Micros(now))
                           .Bind(5, entry.head())
                           .Bind(6, ++last_use_)
                           .Run());
  if (old_body && *old_body != body) KILN_RETURN_IF_ERROR(DropOrphan(*old_body));
  return !old_body;
}

std::expected<void, Error> WriterConnection::DropOrphan(std::string_view body) { return Query(delete_orphan_).Bind(1, body).Run(); }

std::expected<bool, Error> WriterConnection::Erase(const Digest& key) {
  KILN_ASSIGN_OR_RETURN(const auto body, BodyOf(key));
  if (!body) return false;
  KILN_RETURN_IF_ERROR(Query(delete_entry_).Bind(1, key.view()).Run());
  KILN_RETURN_IF_ERROR(DropOrphan(*body));
  return true;
}

std::expected<std::uint64_t, Error> WriterConnection::EraseWithBody(const Digest& key) {
  KILN_ASSIGN_OR_RETURN(const auto body, BodyOf(key));
  if (!body) return 0;
  KILN_RETURN_IF_ERROR(Query(delete_by_body_).Bind(1, *body).Run());
  const std::int64_t entries = db_.Changes();
  KILN_RETURN_IF_ERROR(Query(delete_blob_).Bind(1, *body).Run());
  return static_cast<std::uint64_t>(entries);
}

std::expected<void, Error> WriterConnection::Touch(const Digest& key, WallTime last_used, std::uint64_t hits) {
  return Query(touch_).Bind(1, key.view()).Bind(2, Micros(last_used)).Bind(3, static_cast<std::int64_t>(hits)).Bind(4, ++last_use_).Run();
}

std::expected<std::optional<std::string>, Error> WriterConnection::Get(const Digest& key) { return RunGet(get_, key); }

std::expected<bool, Error> WriterConnection::EvictOne() {
  std::string key;
  std::string body;
  {
    Query oldest(oldest_);
    KILN_ASSIGN_OR_RETURN(const bool row, oldest.Step());
    if (!row) return false;
    key = oldest.Blob(0);
    body = oldest.Blob(1);
  }
  KILN_RETURN_IF_ERROR(Query(delete_entry_).Bind(1, key).Run());
  // If an index names a row that does not exist, eviction would ask for that row forever.
  if (db_.Changes() != 1) return Fail(ErrorCode::kDamaged, "the index by last use disagrees with the entries");
  KILN_RETURN_IF_ERROR(DropOrphan(body));
  return true;
}

std::expected<std::uint64_t, Error> WriterConnection::CountEntries() {
  KILN_ASSIGN_OR_RETURN(const std::int64_t entries, IntegerOf(count_));
  return static_cast<std::uint64_t>(entries);
}

std::expected<std::uint64_t, Error> WriterConnection::UsedBytes() {
  KILN_ASSIGN_OR_RETURN(const std::int64_t pages, IntegerOf(used_pages_));
  return static_cast<std::uint64_t>(pages * kPageSize);
}

std::expected<bool, Error> WriterConnection::Shrink(int pages) {
  KILN_RETURN_IF_ERROR(db_.Execute(fmt::format("PRAGMA incremental_vacuum({});", pages)));
  KILN_ASSIGN_OR_RETURN(const std::int64_t free_pages, IntegerOf(free_pages_));
  return free_pages > 0;
}

}  // namespace kiln::cache
