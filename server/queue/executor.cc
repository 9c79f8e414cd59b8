// SPDX-License-Identifier: Apache-2.0
#include "server/queue/executor.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "server/system/thread_niceness.h"

namespace kiln::server {
namespace {

constexpr double kFirstEstimateMs = 0.1;

}  // namespace

Executor::Executor(unsigned threads, std::size_t capacity, const cache::Clock& clock) : clock_(clock), places_(capacity), shares_(kFirstEstimateMs) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() {
  {
    cache::MutexLock lock(mutex_);
    closed_ = true;
  }
  arrived_.NotifyAll();
}

bool Executor::Post(const std::string& tenant, Task& task) {
  auto place = places_.Take(tenant, 1);
  if (!place) return false;
  {
    cache::MutexLock lock(mutex_);
    if (closed_) return false;
    shares_.Enter(tenant, clock_.SteadyNow());
    lines_[tenant].push_back({std::move(task), std::move(place)});
  }
  arrived_.NotifyOne();
  return true;
}

void Executor::PostFirst(Task task) {
  {
    cache::MutexLock lock(mutex_);
    first_.push_back(std::move(task));
  }
  arrived_.NotifyOne();
}

void Executor::Resume(const std::string& tenant, Task task) {
  {
    cache::MutexLock lock(mutex_);
    shares_.Enter(tenant, clock_.SteadyNow());
    lines_[tenant].push_back({std::move(task), std::nullopt});
  }
  arrived_.NotifyOne();
}

void Executor::Run() {
  YieldToAnswers();
  cache::MutexLock lock(mutex_);
  for (;;) {
    arrived_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return closed_ || !first_.empty() || !lines_.empty(); });
    if (!first_.empty()) {
      std::optional task(std::move(first_.front()));
      first_.pop_front();
      lock.Unlock();
      (*task)();
      task.reset();  // with what it holds, which may want the mutex
      lock.Lock();
    } else if (!lines_.empty()) {
      RunOne(FairestLine());
    } else {
      return;
    }
  }
}

void Executor::RunOne(Lines::iterator line) {
  const std::string tenant = line->first;
  std::optional task(std::move(line->second.front().task));
  line->second.pop_front();
  if (line->second.empty()) lines_.erase(line);
  const auto began = clock_.SteadyNow();
  const FairShare::Turn turn = shares_.Begin(tenant, began);
  mutex_.Unlock();
  (*task)();
  task.reset();
  const std::chrono::duration<double, std::milli> took = clock_.SteadyNow() - began;
  mutex_.Lock();
  shares_.Finish(tenant, turn, took.count());
}

Executor::Lines::iterator Executor::FairestLine() {
  if (std::next(lines_.begin()) == lines_.end()) return lines_.begin();
  const auto now = clock_.SteadyNow();
  return std::ranges::min_element(lines_, {}, [&](const auto& line) KILN_REQUIRES(mutex_) { return shares_.TimeOf(line.first, now); });
}

}  // namespace kiln::server
