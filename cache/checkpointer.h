// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <thread>

#include "cache/mutex.h"
#include "cache/sqlite_writer.h"

namespace kiln::cache {

// The thread that copies the write-ahead log back into the database, so that no put waits for it.
//
// A passive checkpoint after every `checkpoint_bytes` of commits, or when commits have paused for a second: it gets in
// nobody's way, and once all is copied the log is used from its start again. When the log has still grown above
// `wal_limit`, because some reader was always in its middle, one that truncates it: that holds up the writer while it
// copies and gives up when a reader stays.
//
// First of all, after a start that found the store not properly closed, the thread checks the structure of the whole
// file. That takes an eighth of a second per GiB that is in memory and much longer from a slow disk, during which
// everything is served but the log cannot shrink.
//
// It reads through the pool like everybody else, so whoever replaces the store or closes it needs to suspend only that.
class Checkpointer {
 public:
  Checkpointer(StoreContext context, bool check_first) : context_(context), check_pending_(check_first) {}
  ~Checkpointer() { Stop(); }

  void Start();

  // The readers must be suspended, or a check that is running goes on to its end. Whether the check is still due.
  bool Stop();

  // Called with the size of each commit.
  void Committed(std::uint64_t bytes);

 private:
  void Run();
  bool WaitForCommits();
  void CheckStructure();
  void Checkpoint();

  const StoreContext context_;
  bool check_pending_;  // the thread's own while it runs

  Mutex mutex_;
  CondVar work_;
  std::uint64_t pending_bytes_ KILN_GUARDED_BY(mutex_) = 0;  // committed since the last checkpoint
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kiln::cache
