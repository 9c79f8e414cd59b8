// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <thread>

#include "cache/mutex.h"
#include "cache/sqlite/store_context.h"

namespace kiln::cache {

// The thread that copies the write-ahead log back into the database, so that no put waits for it.
//
// A passive checkpoint after every `checkpoint_bytes` of commits, or when commits have paused for a second: it blocks
// nobody, and once all is copied SQLite writes the log from its start again. That never happens while commits follow each
// other without a gap, or while some reader is always in the middle of the log. So above `wal_limit` the thread truncates
// the log. It asks the writer to hold its next transaction until that is done, because SQLite's own lock would let a busy
// writer win again and again. If a reader stays, it gives up until the log has grown by as much again.
//
// First of all, after a start that found the store not properly closed, the thread checks the structure of the whole
// file. That may take long for a large file on a slow disk. Meanwhile everything is served, but the log cannot
// shrink.
//
// It reads through the pool like everybody else, so whoever replaces the store or closes it needs to suspend only that.
class Checkpointer {
 public:
  Checkpointer(StoreContext context, bool check_first) : context_(context), check_pending_(check_first), truncate_above_(context.options.wal_limit) {}
  ~Checkpointer() { Stop(); }

  void Start();

  // Needs suspended readers; otherwise a running check continues to its end. Returns whether the check is still due.
  bool Stop();

  // For the writer: called with the size of each commit, and before each transaction.
  void Committed(std::uint64_t bytes);
  void AwaitTruncation();

 private:
  void Run();
  bool WaitForCommits();
  void CheckStructure();
  void Checkpoint();
  std::expected<bool, Error> Truncate(ReaderPool::Lease& reader);

  const StoreContext context_;

  // The thread's own.
  bool check_pending_;
  std::uint64_t truncate_above_;

  Mutex mutex_;
  CondVar work_;
  CondVar truncated_;
  std::uint64_t pending_bytes_ KILN_GUARDED_BY(mutex_) = 0;  // committed since the last checkpoint
  bool truncating_ KILN_GUARDED_BY(mutex_) = false;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kiln::cache
