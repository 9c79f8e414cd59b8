// SPDX-License-Identifier: Apache-2.0
//
// The bounded queue before the compile workers (fair_queue.h). Tenants share the workers equally; a tenant's own jobs go interactive before
// batch, first come first served among equals. Tuning jobs wait until there are no others. A full queue refuses at once and says when to come
// back.
//
// Threads. Any thread submits; worker slots take jobs; the thread that fires a job's stop token removes the job. There is one mutex. No
// `done` runs under it, and no job is destroyed under it, since the destruction waits for the stop callback, which needs the mutex.
#pragma once

#include <chrono>
#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/mutex.h"
#include "kiln/v1/compile.pb.h"
#include "server/access/caller.h"
#include "server/queue/fair_queue.h"
#include "server/reply/failure.h"

namespace kiln::server {

struct JobOutcome {
  enum class End {
    kResult,     // `result` is what the worker said
    kDied,       // the worker ended, hung or spoke nonsense: `cause`
    kLost,       // the worker was ended from outside, which says nothing of the job: `cause`
    kCancelled,  // nobody waits any more, or kilnd stops
    kNoWorker,   // none could be started: `cause`
    kRefused,    // it was not begun: `refusal`
    kElsewhere,  // it was not begun: another host makes it, or has made it
  };
  End end = End::kCancelled;
  v1::WorkerResult result;
  Failure refusal;
  bool killed = false;  // kLost, once the job had begun
  std::string cause;    // "killed by SIGABRT"
  std::string said;     // the end of what the worker wrote to stderr
  std::string stage;    // the last one that began
  std::chrono::microseconds ran{0};
  double queue_ms = 0;
};

struct Job {
  cache::Digest key;
  std::string request_id;
  Caller caller;
  v1::Priority priority = v1::INTERACTIVE;
  v1::WorkerJob work;
  std::stop_token stop;  // fires when nobody waits for it any more: a job that waits then leaves its line at once
  std::chrono::steady_clock::time_point queued{};
  FairTurn turn;                                            // by Take
  std::function<std::expected<void, Failure>()> may_begin;  // asked when its turn has come; empty: it may
  std::function<bool()> is_ours;                            // asked then; false: it is left to another host. Empty: it is
  std::function<void()> prepare;                            // called last, before the worker has it; may be empty
  bool had_place = false;                                   // it was taken before, and comes again: there is room for it
  std::function<void(std::string_view stage)> on_stage;
  std::move_only_function<void(JobOutcome)> done;                    // called once, while the job is there
  std::optional<std::stop_callback<std::function<void()>>> on_stop;  // Admission's own; the last member, so that it is destroyed before what it uses
};

struct QueueFull {
  std::size_t queued;
  std::chrono::milliseconds retry_after;
};

class Admission {
 public:
  Admission(std::size_t capacity, unsigned workers, const cache::Clock& clock);

  // Takes the job, or leaves it where it is and refuses.
  std::expected<void, QueueFull> Submit(std::unique_ptr<Job>& job);

  // Whether Submit would now refuse a job of this caller's and priority.
  std::optional<QueueFull> Refuses(const Caller& caller, v1::Priority priority) const;

  // The next job; waits for one. Null when the queue is closed. Jobs that nobody waits for end here as kCancelled.
  std::unique_ptr<Job> Take();

  // A job that was taken has ended.
  void Finished(const Job& job, const JobOutcome& outcome);

  // A more urgent request for a job that waits already.
  void Promote(const cache::Digest& key, v1::Priority priority);

  // Ends every waiting job as kCancelled, and Take from now on.
  void Close();

  std::size_t queued() const;
  std::size_t capacity() const { return capacity_; }

 private:
  static constexpr double kFirstEstimateMs = 50;

  std::expected<void, QueueFull> Enqueue(std::unique_ptr<Job>& job);
  void Withdraw(const Job& job);
  std::chrono::milliseconds RetryAfter() const KILN_REQUIRES(mutex_);

  const std::size_t capacity_;
  const unsigned workers_;
  mutable cache::Mutex mutex_;
  cache::CondVar arrived_;
  FairQueue<std::unique_ptr<Job>> queue_ KILN_GUARDED_BY(mutex_);
  double average_ms_ KILN_GUARDED_BY(mutex_) = kFirstEstimateMs;
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
