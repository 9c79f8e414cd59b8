// SPDX-License-Identifier: Apache-2.0
//
// The bounded queue before the compile workers: interactive before batch before tuning, first come first served among equals.
// A full queue refuses at once and says when to come back.
//
// Threads. Any thread submits; the worker slots take. One mutex; a job's `done` never runs under it.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::server {

struct JobOutcome {
  enum class End {
    kResult,     // `result` is what the worker said
    kDied,       // the worker ended, hung or spoke nonsense: `cause`
    kCancelled,  // nobody waits any more, or kilnd stops
    kNoWorker,   // none could be started: `cause`
  };
  End end = End::kCancelled;
  v1::WorkerResult result;
  std::string cause;        // "killed by SIGABRT"
  std::string said;         // the end of what the worker wrote to stderr
  std::string stage;        // the last one that began
  std::chrono::microseconds ran{0};
  double queue_ms = 0;
};

struct Job {
  cache::Digest key;
  std::string request_id;
  v1::Priority priority = v1::INTERACTIVE;
  v1::WorkerJob work;
  std::stop_token stop;  // fires when nobody waits for it any more
  std::chrono::steady_clock::time_point queued{};
  std::function<void(std::string_view stage)> on_stage;
  std::move_only_function<void(JobOutcome)> done;  // called once
};

struct QueueFull {
  std::size_t queued;
  std::chrono::milliseconds retry_after;
};

class Admission {
 public:
  Admission(std::size_t capacity, unsigned workers) : capacity_(capacity), workers_(workers) {}

  // Takes the job, or leaves it where it is and refuses.
  std::expected<void, QueueFull> Submit(std::unique_ptr<Job>& job);

  // The next job; waits for one. Null when the queue is closed. Jobs that nobody waits for end here as kCancelled.
  std::unique_ptr<Job> Take();

  // A more urgent request for a job that waits already.
  void Promote(const cache::Digest& key, v1::Priority priority);

  // A compile took so long: what retry_after is estimated from.
  void NoteDuration(std::chrono::microseconds ran);

  // Ends every waiting job as kCancelled, and Take from now on.
  void Close();

  std::size_t queued() const;

 private:
  static constexpr std::size_t kClasses = 3;
  using Line = std::deque<std::unique_ptr<Job>>;

  std::size_t Count() const;
  Line RemoveAbandoned();
  std::chrono::milliseconds RetryAfter() const;

  const std::size_t capacity_;
  const unsigned workers_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::array<Line, kClasses> lines_;
  double average_ms_ = 50;
  bool closed_ = false;
};

}  // namespace kiln::server
