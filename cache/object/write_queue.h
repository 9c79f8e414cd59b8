// SPDX-License-Identifier: Apache-2.0
//
// Writes to the object store, behind the replies that they belong to.
//
// Threads. Some of our own, the writers, each with a line of its own: a store takes its time for each object, and many at once. What is written
// under one key is always of the same writer, so that it stays in order. Any thread adds to a line and returns at once; where it is full, the write
// is lost, which costs a later miss. So does whatever the store does not take, and what waits when the process ends and the store does not answer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <variant>

#include "cache/mutex.h"
#include "cache/object/store.h"
#include "cache/outside/counters.h"
#include "cache/outside/waiting_line.h"
#include "cache/tier.h"

namespace kiln::cache::object {

class WriteQueue {
 public:
  struct Options {
    std::uint64_t max_bytes = std::uint64_t{64} << 20;  // that wait; one that is larger waits alone
  };
  WriteQueue(Options options, Store& store);
  // What waits is written as long as the store takes it.
  ~WriteQueue();

  // Only where there is nothing yet, or something that is of no use.
  void Put(Entry entry, PutDone done);
  // Removes what was found corrupt. A store that lets nobody remove it has it replaced by the next put.
  void Evict(const Digest& key);
  // What is there is of no use to this process, but it may be to others: it stays until this process puts its own.
  void ReplaceNext(const Digest& key);

  const WriteCounters& counters() const { return counters_; }

 private:
  static constexpr std::size_t kWriters = 4;

  struct PutItem {
    Entry entry;
    PutDone done;
  };
  struct EvictItem {
    Digest key;
  };
  using Item = std::variant<PutItem, EvictItem>;

  WaitingLine<Item>& LineOf(const Digest& key);
  void Run(WaitingLine<Item>& line);
  void Write(PutItem& put);
  void Remove(const Digest& key);
  bool IsOfNoUse(const Digest& key) const;
  void NoteUseless(const Digest& key);
  void ForgetUseless(const Digest& key);

  Store& store_;
  WriteCounters counters_;
  mutable Mutex mutex_;
  std::set<Digest> useless_ KILN_GUARDED_BY(mutex_);  // what is there under these is corrupt, or is not taken in
  std::array<std::unique_ptr<WaitingLine<Item>>, kWriters> lines_;
  std::array<std::thread, kWriters> writers_;  // last: they use the others
};

}  // namespace kiln::cache::object
