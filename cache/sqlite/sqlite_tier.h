// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/clock.h"
#include "cache/tier.h"

namespace kiln::cache {

struct SqliteOptions {
  std::filesystem::path directory;  // created if missing; one process at a time may hold it

  // Eviction starts above this many bytes of pages in use. The file itself never grows far beyond it, for freed pages
  // are used again.
  std::uint64_t capacity = std::uint64_t{8} << 30;

  // The file may never exceed this; a put that would make it grow further fails with kFull. 0: no such limit.
  std::uint64_t hard_limit = 0;

  // How much of the file is read through a memory map. A map saves a copy, which is a small part of a read since the digest takes longer.
  // But an I/O error under it, or truncation of the file by somebody else, raises SIGBUS and ends the process, while a read returns an
  // error and work goes on. 0: everything is read with pread.
  std::uint64_t mmap_bytes = 0;

  // The write-ahead log is copied back above the first size and cut off above the second.
  std::uint64_t checkpoint_bytes = std::uint64_t{4} << 20;
  std::uint64_t wal_limit = std::uint64_t{24} << 20;

  // Writes that wait, before further ones are dropped with kOverloaded.
  std::uint64_t max_queued_bytes = std::uint64_t{64} << 20;

  // One group commit takes at most this many bytes of what waits.
  std::uint64_t max_batch_bytes = std::uint64_t{8} << 20;

  // Uses are remembered in memory and written this often, and always before something is evicted.
  std::chrono::milliseconds touch_interval = std::chrono::seconds(5);

  // How long a full disk or an unreachable file keeps the store from writing.
  std::chrono::milliseconds retry_after = std::chrono::seconds(2);

  // The f_type of statfs(2) for a path; nothing when it cannot be told. Replaced in tests.
  std::function<std::optional<std::uint64_t>(const std::filesystem::path&)> filesystem_type;

  // Told about what a person should know: a store set aside, a disk full and no longer full. Any thread.
  std::function<void(const Error&)> on_event;
};

struct EntryInfo {
  Digest key;
  Digest digest;
  std::uint64_t sealed_size = 0;
  WallTime created;
  WallTime last_used;  // as last written; the newest uses may still be in memory
  std::uint64_t hits = 0;
  std::string metadata;
};

struct ListOptions {
  std::optional<Digest> after;                   // start behind this key
  std::size_t limit = SIZE_MAX;                  // entries returned
  std::function<bool(const EntryInfo&)> accept;  // all, where empty
};

struct VerifyReport {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  std::uint64_t corrupt = 0;    // evicted
  std::vector<Digest> evicted;  // their keys; at most the first 1000
  bool store_damaged = false;   // the file's own structure is broken: it is being set aside
};

struct GcReport {
  std::uint64_t evicted = 0;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
};

// L1: entries in one SQLite database on a local disk. The database is `kiln.db` in the directory; see sqlite_schema.h
// for what is in it, and sqlite_tier_impl.h for the threads.
//
// What holds:
//   - Every Get verifies the digests of what it read. A corrupt entry is evicted and reported as kCorrupt.
//   - When `done` reports success the entry survives kill -9. A power cut may lose the last commits, never the store.
//   - A damaged file is renamed to `kiln.db.corrupt-N` and replaced by an empty one, at Open and at any later time.
//   - A full disk makes the store read-only for `retry_after`.
//   - One on a file system that is mounted read-only serves what it has; what would change it fails with kFull.
//   - Opening does not read the entries: a store that was not closed properly is checked in the background.
class SqliteTier final : public Tier {
 public:
  // kRefused on a network file system or when another process holds the directory; kUnreachable for other failures.
  static std::expected<std::unique_ptr<SqliteTier>, Error> Open(SqliteOptions options, const Clock& clock);

  // Commits every accepted put, then closes.
  ~SqliteTier() override;

  std::string_view name() const override { return "sqlite"; }
  bool blocking() const override { return true; }
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override;
  void Touch(const Digest& key) override;
  void Put(Entry entry, PutDone done = {}) override;
  std::expected<bool, Error> Erase(const Digest& key) override;
  TierStats Stats() const override;
  std::uint64_t losses() const override;

  // As Get, but counts neither as a use nor as a hit or miss.
  std::expected<std::optional<Entry>, Error> Peek(const Digest& key);

  // Entries in the order of their keys. No lock is held while `accept` runs, so what is put or evicted meanwhile may or
  // may not be seen.
  std::expected<std::vector<EntryInfo>, Error> List(const ListOptions& options) const;

  // Reads and verifies everything, and evicts what is corrupt. Serving goes on.
  std::expected<VerifyReport, Error> Verify();

  // Evicts, least recently used first, until at most `target` bytes are in use, and gives freed pages back to the file
  // system. Serving goes on.
  std::expected<GcReport, Error> Gc(std::uint64_t target);

  // Waits until what was put before is committed, uses included.
  std::expected<void, Error> Flush();

 private:
  class Impl;
  explicit SqliteTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::cache
