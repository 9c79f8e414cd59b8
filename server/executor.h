// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kiln::server {

// A few threads and a bounded queue, for what must not block gRPC's threads: decoding, SQLite, maintenance.
class Executor {
 public:
  using Task = std::move_only_function<void()>;

  Executor(unsigned threads, std::size_t capacity);
  ~Executor();  // runs what is queued, then joins

  // False when the queue is full; the task is untouched then.
  bool Post(Task& task);

  // Before all that waits, however full the queue is: the end of what was accepted long ago.
  void PostFirst(Task task);

 private:
  void Run();

  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Task> tasks_;
  bool closed_ = false;
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace kiln::server
