// SPDX-License-Identifier: Apache-2.0
//
// Records of ended calls on their way to the log, the metrics and the span file.
//
// Threads. Any thread adds; that costs a lock and a move, so that a hit does not wait for a log. One thread of the journal takes what
// has gathered, a millisecond's worth at a time, and gives each record to the readers in the order of their ends. What is
// gathered is bounded: when the disk under the log stands still, records are dropped and counted, and requests are still served.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "cache/mutex.h"
#include "server/telemetry/call_record.h"

namespace kiln::server {

class Journal {
 public:
  using Reader = std::function<void(std::span<const CallRecord>)>;

  // The reader is called on the journal's thread.
  explicit Journal(Reader reader, std::size_t capacity = 1 << 16);
  ~Journal();  // after the last record has been read

  void Add(CallRecord record);

  // Until everything that was added before has been read, but no longer than that; whether it has been.
  bool Flush(std::chrono::milliseconds patience);

  std::uint64_t dropped() const { return dropped_; }

 private:
  void Run();

  const Reader reader_;
  const std::size_t capacity_;
  cache::Mutex mutex_;
  cache::CondVar changed_;
  std::vector<CallRecord> waiting_ KILN_GUARDED_BY(mutex_);
  std::uint64_t added_ KILN_GUARDED_BY(mutex_) = 0;
  std::uint64_t read_ KILN_GUARDED_BY(mutex_) = 0;
  bool hurry_ KILN_GUARDED_BY(mutex_) = false;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint64_t> dropped_ = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kiln::server
