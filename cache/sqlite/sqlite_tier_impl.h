// SPDX-License-Identifier: Apache-2.0
//
// Inside the SQLite tier.
//
//   callers ──► ReaderPool ──────────────► kiln.db ◄── SqliteWriter (thread) ◄── queue ◄── callers
//                   ▲                                       │ commits
//                   └────────── Checkpointer (thread) ◄─────┘
//
// Three kinds of threads touch the database, each through connections of its own: callers read, with a lease from the
// pool; one thread writes; one checkpoints. SQLite's WAL lets them run side by side: a reader sees the last commit
// before it began and waits for nobody. Verifying digests happens on the caller's thread, after the lease is returned.
//
// What they share is in StoreContext: counters and the log of uses, which lock for themselves, and the directory, whose
// only mutable state is the file system. A file is replaced by the writer's thread alone, when no lease is out.
//
// Closing: the pool is suspended (which interrupts a structure check), the checkpointer ends, the writer drains its
// queue and closes the last connection, which leaves no log behind. Only then is the mark of an open store removed.
//
// On a file system that is mounted read-only there are only the readers: no writer, no checkpointer, no log of uses.
#pragma once

#include <atomic>
#include <memory>

#include "cache/sqlite/checkpointer.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/sqlite/sqlite_writer.h"

namespace kiln::cache {

class SqliteTier::Impl {
 public:
  Impl(SqliteOptions options, const Clock& clock, StoreDirectory directory);
  ~Impl();

  // Opens the database, sets a damaged one aside, and starts the threads. Where the directory cannot be written it only reads.
  std::expected<void, Error> Start();

  std::expected<std::optional<Entry>, Error> Get(const Digest& key);
  void Touch(const Digest& key);
  std::expected<std::optional<Entry>, Error> Peek(const Digest& key);
  TierStats Stats() const;
  std::uint64_t losses() const { return counters_.set_aside; }
  std::expected<std::vector<EntryInfo>, Error> List(const ListOptions& options);
  std::expected<VerifyReport, Error> Verify();
  SqliteWriter* writer() { return writer_.get(); }  // null: it only reads

 private:
  std::expected<void, Error> StartReading();
  void NoteDamage(const Error& error);

  // The stored bytes of the key, unverified.
  std::expected<std::optional<std::string>, Error> Read(const Digest& key);
  std::expected<std::vector<EntryInfo>, Error> ListPage(const std::optional<Digest>& after, std::size_t limit);
  std::expected<void, Error> VerifyEntry(const Digest& key, VerifyReport& report);
  std::expected<bool, Error> StructureIsSound();

  const SqliteOptions options_;
  const Clock& clock_;
  StoreDirectory directory_;
  StoreCounters counters_;
  UseLog uses_;
  std::atomic<bool> told_damage_ = false;  // where it cannot be mended
  ReaderPool readers_;
  const StoreContext context_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<SqliteWriter> writer_;
};

}  // namespace kiln::cache
