// SPDX-License-Identifier: Apache-2.0
#include "server/executor.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "server/thread_niceness.h"

namespace kiln::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kFirstEstimateMs = 0.1;

}  // namespace

Executor::Executor(unsigned threads, std::size_t capacity) : places_(capacity), shares_(kFirstEstimateMs) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

bool Executor::Post(const std::string& tenant, Task& task) {
  auto place = places_.Take(tenant, 1);
  if (!place) return false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    shares_.Enter(tenant, Clock::now());
    lines_[tenant].push_back({std::move(task), std::move(place)});
  }
  arrived_.notify_one();
  return true;
}

void Executor::PostFirst(Task task) {
  {
    std::lock_guard lock(mutex_);
    first_.push_back(std::move(task));
  }
  arrived_.notify_one();
}

void Executor::Resume(const std::string& tenant, Task task) {
  {
    std::lock_guard lock(mutex_);
    shares_.Enter(tenant, Clock::now());
    lines_[tenant].push_back({std::move(task), std::nullopt});
  }
  arrived_.notify_one();
}

void Executor::Run() {
  YieldToAnswers();
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [&] { return closed_ || !first_.empty() || !lines_.empty(); });
    if (!first_.empty()) {
      std::optional task(std::move(first_.front()));
      first_.pop_front();
      lock.unlock();
      (*task)();
      task.reset();  // with what it holds, which may want the mutex
      lock.lock();
    } else if (!lines_.empty()) {
      RunOne(lock, FairestLine());
    } else {
      return;
    }
  }
}

void Executor::RunOne(std::unique_lock<std::mutex>& lock, Lines::iterator line) {
  const std::string tenant = line->first;
  std::optional task(std::move(line->second.front().task));
  line->second.pop_front();
  if (line->second.empty()) lines_.erase(line);
  const auto began = Clock::now();
  const FairShare::Turn turn = shares_.Begin(tenant, began);
  lock.unlock();
  (*task)();
  task.reset();
  const std::chrono::duration<double, std::milli> took = Clock::now() - began;
  lock.lock();
  shares_.Finish(tenant, turn, took.count());
}

Executor::Lines::iterator Executor::FairestLine() {
  if (std::next(lines_.begin()) == lines_.end()) return lines_.begin();
  const auto now = Clock::now();
  return std::ranges::min_element(lines_, {}, [&](const auto& line) { return shares_.TimeOf(line.first, now); });
}

}  // namespace kiln::server
