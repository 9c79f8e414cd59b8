// SPDX-License-Identifier: Apache-2.0
#include "server/queue/admission.h"

#include <algorithm>
#include <utility>

namespace kiln::server {
namespace {

std::size_t ClassOf(v1::Priority priority) { return std::min<std::size_t>(static_cast<std::size_t>(priority), 2); }

double Milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

bool IsEmpty(const auto& lines) {
  return std::ranges::all_of(lines, [](const auto& line) { return line.empty(); });
}

void Cancel(std::unique_ptr<Job> job) { job->done({.end = JobOutcome::End::kCancelled}); }

}  // namespace

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
  if (closed_ || !HasRoomFor(tenant, cls)) return std::unexpected(QueueFull{count_, RetryAfter()});
  if (job->stop.stop_requested()) return {};
  job->queued = clock_.SteadyNow();
  job->waits_as = cls;
  SharesOf(cls).Enter(tenant, job->queued);
  ++count_;
  tenants_[tenant][cls].push_back(std::move(job));
  return {};
}

// Nobody waits for it any more. It may have been taken already, and is then the worker's business.
void Admission::Withdraw(const Job& job) {
  std::unique_ptr<Job> found;
  {
    cache::MutexLock lock(mutex_);
    const auto tenant = tenants_.find(job.caller.tenant);
    if (tenant == tenants_.end()) return;
    for (Line& line : tenant->second) {
      const auto at = std::ranges::find(line, &job, [](const auto& waiting) { return waiting.get(); });
      if (at == line.end()) continue;
      found = std::move(*at);
      line.erase(at);
      --count_;
      SharesOf(job.waits_as).Leave(tenant->first);
      break;
    }
    if (IsEmpty(tenant->second)) tenants_.erase(tenant);
  }
  if (found) Cancel(std::move(found));
}

std::optional<QueueFull> Admission::Refuses(const Caller& caller, v1::Priority priority) const {
  cache::MutexLock lock(mutex_);
  if (!closed_ && HasRoomFor(caller.tenant, ClassOf(priority))) return std::nullopt;
  return QueueFull{count_, RetryAfter()};
}

std::unique_ptr<Job> Admission::Take() {
  for (;;) {
    std::unique_ptr<Job> job;
    bool wanted = true;
    {
      cache::MutexLock lock(mutex_);
      arrived_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return closed_ || count_ > 0; });
      if (closed_) return nullptr;
      Line& line = *NextLine();
      job = std::move(line.front());
      line.pop_front();
      --count_;
      const std::string& tenant = job->caller.tenant;
      if (const auto at = tenants_.find(tenant); IsEmpty(at->second)) tenants_.erase(at);
      wanted = !job->stop.stop_requested();
      if (wanted) {
        job->turn = SharesOf(job->waits_as).Begin(tenant, clock_.SteadyNow());
      } else {
        SharesOf(job->waits_as).Leave(tenant);
      }
    }
    if (wanted) return job;
    Cancel(std::move(job));
  }
}

void Admission::Finished(const Job& job, const JobOutcome& outcome) {
  const double took = Milliseconds(outcome.ran);
  cache::MutexLock lock(mutex_);
  SharesOf(job.waits_as).Finish(job.caller.tenant, job.turn, took);
  if (outcome.end == JobOutcome::End::kResult) average_ms_ += (took - average_ms_) / 16;
}

void Admission::Promote(const cache::Digest& key, v1::Priority priority) {
  const std::size_t to = ClassOf(priority);
  cache::MutexLock lock(mutex_);
  for (auto& [tenant, lines] : tenants_) {
    for (std::size_t from = to + 1; from < kClasses; ++from) {
      Line& line = lines[from];
      const auto at = std::ranges::find_if(line, [&](const auto& job) { return job->key == key; });
      if (at == line.end()) continue;
      // The order matters: a tenant with nothing left in an account loses the time that it is owed there.
      SharesOf(to).Enter(tenant, clock_.SteadyNow());
      SharesOf(from).Leave(tenant);
      (*at)->waits_as = to;
      lines[to].push_back(std::move(*at));
      line.erase(at);
      return;
    }
  }
}

void Admission::Close() {
  std::map<std::string, Lines> rest;
  {
    cache::MutexLock lock(mutex_);
    closed_ = true;
    rest = std::exchange(tenants_, {});
    count_ = 0;
  }
  arrived_.NotifyAll();
  for (auto& [tenant, lines] : rest) {
    for (Line& line : lines) {
      for (auto& job : line) Cancel(std::move(job));
    }
  }
}

std::size_t Admission::queued() const {
  cache::MutexLock lock(mutex_);
  return count_;
}

bool Admission::HasRoomFor(const std::string& tenant, std::size_t cls) const {
  if (count_ >= capacity_) return false;
  const auto at = tenants_.find(tenant);
  return at == tenants_.end() || at->second[cls].size() < kOwnPart * (capacity_ - count_);
}

// There is a job.
Admission::Line* Admission::NextLine() {
  Line* line = FairestLine(0, kTuning - 1);
  return line != nullptr ? line : FairestLine(kTuning, kTuning);
}

// Among tenants with a job of these classes, takes the most urgent line of the tenant whose turn it is.
Admission::Line* Admission::FairestLine(std::size_t first_class, std::size_t last_class) {
  const auto now = clock_.SteadyNow();
  Line* best = nullptr;
  double best_time = 0;
  for (auto& [tenant, lines] : tenants_) {
    const auto end = lines.begin() + static_cast<std::ptrdiff_t>(last_class) + 1;
    const auto line = std::find_if(lines.begin() + static_cast<std::ptrdiff_t>(first_class), end, [](const Line& l) { return !l.empty(); });
    if (line == end) continue;
    const double time = SharesOf(first_class).TimeOf(tenant, now);
    if (best == nullptr || time < best_time) {
      best = &*line;
      best_time = time;
    }
  }
  return best;
}

std::chrono::milliseconds Admission::RetryAfter() const {
  const double wait = static_cast<double>(count_ + 1) * average_ms_ / workers_;
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(wait, 100.0, 30'000.0)));
}

}  // namespace kiln::server
