// SPDX-License-Identifier: Apache-2.0
#include "server/admission.h"

#include <algorithm>
#include <utility>

namespace kiln::server {
namespace {

std::size_t ClassOf(v1::Priority priority) {
  return std::min<std::size_t>(static_cast<std::size_t>(priority), 2);
}

void Cancel(std::unique_ptr<Job> job) { job->done({.end = JobOutcome::End::kCancelled}); }

}  // namespace

std::expected<void, QueueFull> Admission::Submit(std::unique_ptr<Job>& job) {
  Line abandoned;
  {
    std::lock_guard lock(mutex_);
    if (Count() >= capacity_) abandoned = RemoveAbandoned();
    if (closed_ || Count() >= capacity_) return std::unexpected(QueueFull{Count(), RetryAfter()});
    job->queued = std::chrono::steady_clock::now();
    lines_[ClassOf(job->priority)].push_back(std::move(job));
  }
  arrived_.notify_one();
  for (auto& gone : abandoned) Cancel(std::move(gone));
  return {};
}

std::unique_ptr<Job> Admission::Take() {
  for (;;) {
    std::unique_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return closed_ || Count() > 0; });
      if (closed_) return nullptr;
      Line& line = *std::ranges::find_if(lines_, [](const Line& l) { return !l.empty(); });
      job = std::move(line.front());
      line.pop_front();
    }
    if (!job->stop.stop_requested()) return job;
    Cancel(std::move(job));
  }
}

void Admission::Promote(const cache::Digest& key, v1::Priority priority) {
  std::lock_guard lock(mutex_);
  for (std::size_t from = ClassOf(priority) + 1; from < kClasses; ++from) {
    Line& line = lines_[from];
    const auto at = std::ranges::find_if(line, [&](const auto& job) { return job->key == key; });
    if (at == line.end()) continue;
    lines_[ClassOf(priority)].push_back(std::move(*at));
    line.erase(at);
    return;
  }
}

void Admission::NoteDuration(std::chrono::microseconds ran) {
  std::lock_guard lock(mutex_);
  average_ms_ += (static_cast<double>(ran.count()) / 1000 - average_ms_) / 16;
}

void Admission::Close() {
  std::array<Line, kClasses> rest;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    rest = std::exchange(lines_, {});
  }
  arrived_.notify_all();
  for (Line& line : rest) {
    for (auto& job : line) Cancel(std::move(job));
  }
}

std::size_t Admission::queued() const {
  std::lock_guard lock(mutex_);
  return Count();
}

std::size_t Admission::Count() const {
  std::size_t count = 0;
  for (const Line& line : lines_) count += line.size();
  return count;
}

Admission::Line Admission::RemoveAbandoned() {
  Line abandoned;
  for (Line& line : lines_) {
    const auto kept = std::stable_partition(line.begin(), line.end(),
                                            [](const auto& job) { return !job->stop.stop_requested(); });
    std::move(kept, line.end(), std::back_inserter(abandoned));
    line.erase(kept, line.end());
  }
  return abandoned;
}

std::chrono::milliseconds Admission::RetryAfter() const {
  const double wait = static_cast<double>(Count() + 1) * average_ms_ / workers_;
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(wait, 100.0, 30'000.0)));
}

}  // namespace kiln::server
