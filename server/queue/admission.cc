// SPDX-License-Identifier: Apache-2.0
#include "server/queue/admission.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kiln::server {
namespace {

std::size_t ClassOf(v1::Priority priority) { return std::min<std::size_t>(static_cast<std::size_t>(priority), 2); }

double Milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

void Cancel(std::unique_ptr<Job> job) { job->done({.end = JobOutcome::End::kCancelled}); }

}  // namespace

Admission::Admission(std::size_t capacity, unsigned workers, const cache::Clock& clock)
    : capacity_(capacity), workers_(workers), queue_({kFirstEstimateMs, capacity, {0, 0, 1}}, clock) {}  // interactive, batch; tuning

std::expected<void, QueueFull> Admission::Submit(std::unique_ptr<Job>& job) {
  // What fires before it is in its line is seen by Enqueue, what fires later waits for the mutex.
  job->on_stop.emplace(job->stop, [this, which = job.get()] { Withdraw(*which); });
  auto queued = Enqueue(job);
  if (!queued) {
    job->on_stop.reset();
  } else if (job) {
    Cancel(std::move(job));
  } else {
    arrived_.NotifyOne();
  }
  return queued;
}

// Does not take a job that nobody waits for any more.
std::expected<void, QueueFull> Admission::Enqueue(std::unique_ptr<Job>& job) {
  cache::MutexLock lock(mutex_);
  const std::size_t cls = ClassOf(job->priority);
  const std::string& tenant = job->caller.tenant;
  if (closed_ || (!job->had_place && !queue_.HasRoomFor(tenant, cls))) return std::unexpected(QueueFull{queue_.size(), RetryAfter()});
  if (job->stop.stop_requested()) return {};
  Job& waiting = *job;
  waiting.queued = queue_.Push(tenant, cls, std::move(job));
  return {};
}

// Nobody waits for it any more. It may have been taken already, and is then the worker's business.
void Admission::Withdraw(const Job& job) {
  std::optional<std::unique_ptr<Job>> found;
  {
    cache::MutexLock lock(mutex_);
    found = queue_.Remove(job.caller.tenant, [&](const auto& waiting) { return waiting.get() == &job; });
  }
  if (found) Cancel(std::move(*found));
}

std::optional<QueueFull> Admission::Refuses(const Caller& caller, v1::Priority priority) const {
  cache::MutexLock lock(mutex_);
  if (!closed_ && queue_.HasRoomFor(caller.tenant, ClassOf(priority))) return std::nullopt;
  return QueueFull{queue_.size(), RetryAfter()};
}

std::unique_ptr<Job> Admission::Take() {
  for (;;) {
    std::unique_ptr<Job> job;
    {
      cache::MutexLock lock(mutex_);
      arrived_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return closed_ || queue_.size() > 0; });
      if (closed_) return nullptr;
      auto taken = queue_.Take([](const auto& next) { return !next->stop.stop_requested(); });
      job = std::move(taken.item);
      if (taken.turn) {
        job->turn = std::move(*taken.turn);
        return job;
      }
    }
    Cancel(std::move(job));
  }
}

void Admission::Finished(const Job& job, const JobOutcome& outcome) {
  const double took = Milliseconds(outcome.ran);
  cache::MutexLock lock(mutex_);
  queue_.Finish(job.turn, took);
  if (outcome.end == JobOutcome::End::kResult) average_ms_ += (took - average_ms_) / 16;
}

void Admission::Promote(const cache::Digest& key, v1::Priority priority) {
  cache::MutexLock lock(mutex_);
  queue_.Promote(ClassOf(priority), [&](const auto& job) { return job->key == key; });
}

void Admission::Close() {
  std::vector<std::unique_ptr<Job>> rest;
  {
    cache::MutexLock lock(mutex_);
    closed_ = true;
    rest = queue_.Clear();
  }
  arrived_.NotifyAll();
  for (auto& job : rest) Cancel(std::move(job));
}

std::size_t Admission::queued() const {
  cache::MutexLock lock(mutex_);
  return queue_.size();
}

std::chrono::milliseconds Admission::RetryAfter() const {
  const double wait = static_cast<double>(queue_.size() + 1) * average_ms_ / workers_;
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(wait, 100.0, 30'000.0)));
}

}  // namespace kiln::server
