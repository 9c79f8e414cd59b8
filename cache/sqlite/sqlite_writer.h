// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <expected>
#include <functional>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "cache/sqlite/checkpointer.h"
#include "cache/sqlite/sqlite_schema.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/sqlite/store_context.h"

namespace kiln::cache {

// The thread that writes: the only one that changes the database, and the one that replaces it when it is damaged.
//
// Group commit. Operations wait in one queue, in order. The thread takes what is there, up to a batch's bytes, applies
// it in one transaction, commits, and only then tells who waits. While it commits the next batch gathers by itself, so
// there is no timer to tune: a lone put is committed at once, a burst shares commits. If anything in a batch fails the
// whole batch is rolled back and everybody in it is told.
//
// Room. After the puts of a batch, inside its transaction, the least recently used entries go until the pages in use
// are below capacity. Uses that are still in memory are written before, so that the order is the true one.
//
// A full disk. The batch fails with kFull, and puts are refused until `retry_after` has passed; erasing and collecting
// are still tried, for they can make room.
//
// A damaged file. Whoever meets it calls ReportDamage while holding its reader lease (or is this thread). The thread
// then suspends the readers, which waits for every lease, so no report about the old file can arrive after that;
// closes, renames, opens an empty database, resumes. Meanwhile lookups find nothing. What is queued goes into the new
// one.
//
// Locks. `mutex_` guards the queue and flags and is never held during I/O or callbacks. The destructor drains the
// queue.
class SqliteWriter {
 public:
  using EraseDone = std::move_only_function<void(std::expected<bool, Error>)>;
  using GcDone = std::move_only_function<void(std::expected<GcReport, Error>)>;

  SqliteWriter(StoreContext context, WriterConnection connection, Checkpointer& checkpointer);
  ~SqliteWriter();

  void Put(Entry entry, PutDone done);
  void Erase(const Digest& key, EraseDone done);
  void Gc(std::uint64_t target, GcDone done);
  void Flush(PutDone done);

  // Evicts the entry if it is still corrupt when its turn comes: it may have been replaced by then.
  void EvictIfCorrupt(const Digest& key);

  void ReportDamage(const Error& error);

 private:
  struct PutOperation {
    Entry entry;
    PutDone done;
    bool is_new = false;
  };
  struct EraseOperation {
    Digest key;
    EraseDone done;
    bool existed = false;
  };
  struct EvictCorruptOperation {
    Digest key;
    std::uint64_t evicted = 0;
  };
  struct GcOperation {
    std::uint64_t target;
    GcDone done;
    std::optional<std::uint64_t> bytes_before;
    GcReport report;
    bool finished = false;
  };
  struct FlushOperation {
    PutDone done;
  };
  using Operation = std::variant<PutOperation, EraseOperation, EvictCorruptOperation, GcOperation, FlushOperation>;

  // What a transaction changed; added to the counters once it is committed.
  struct Changes {
    std::int64_t entries = 0;
    std::uint64_t puts = 0;
    std::uint64_t evictions = 0;
    std::uint64_t corrupt = 0;
    std::uint64_t written = 0;
    std::uint64_t used_bytes = 0;
  };

  static std::uint64_t SizeOf(const Operation& operation);
  static void Complete(Operation& operation, const std::expected<void, Error>& outcome);

  bool Enqueue(Operation& operation);
  void Run();
  std::optional<std::vector<Operation>> NextBatch();
  bool UsesAreDue() const;

  void Execute(std::vector<Operation> batch);
  void Requeue(Operation operation);
  std::expected<Changes, Error> Transact(std::vector<Operation>& batch);
  std::expected<void, Error> Apply(Operation& operation, Changes& changes);
  std::expected<void, Error> CollectSlice(GcOperation& gc, Changes& changes);
  std::expected<void, Error> WriteUses(UseLog::Uses& uses);
  std::expected<void, Error> MakeRoom(UseLog::Uses& uses, Changes& changes);
  void Publish(const Changes& changes);
  void RefusePuts(std::vector<Operation>& batch);
  void Recognize(const Error& error);

  void CountEntries();
  void ReplaceStore();
  std::expected<void, Error> Reopen();

  const StoreContext context_;
  Checkpointer& checkpointer_;

  // The thread's own.
  std::optional<WriterConnection> db_;
  SteadyTime uses_written_;
  SteadyTime retry_at_;  // while read-only or without a connection: when to try again

  Mutex mutex_;
  CondVar work_;
  std::deque<Operation> queue_ KILN_GUARDED_BY(mutex_);
  std::uint64_t queued_bytes_ KILN_GUARDED_BY(mutex_) = 0;
  std::optional<Error> damage_ KILN_GUARDED_BY(mutex_);
  bool closing_ KILN_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kiln::cache
