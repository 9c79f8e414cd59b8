// SPDX-License-Identifier: Apache-2.0
#include "server/queue/executor.h"

#include <chrono>
#include <optional>
#include <utility>

#include "server/system/thread_niceness.h"

namespace kiln::server {
namespace {

constexpr double kFirstEstimateMs = 0.1;

}  // namespace

Executor::Executor(unsigned threads, std::size_t capacity, const cache::Clock& clock)
    : clock_(clock), places_(capacity), queue_({kFirstEstimateMs}, clock) {
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
    queue_.Push(tenant, 0, {std::move(task), std::move(*place)});
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
    queue_.Push(tenant, 0, {std::move(task), std::nullopt});
  }
  arrived_.NotifyOne();
}

void Executor::Run() {
  YieldToAnswers();
  cache::MutexLock lock(mutex_);
  for (;;) {
    arrived_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return closed_ || !first_.empty() || queue_.size() > 0; });
    if (!first_.empty()) {
      std::optional task(std::move(first_.front()));
      first_.pop_front();
      lock.Unlock();
      (*task)();
      task.reset();  // with what it holds, which may want the mutex
      lock.Lock();
    } else if (queue_.size() > 0) {
      RunOne();
    } else {
      return;
    }
  }
}

void Executor::RunOne() {
  auto [waiting, turn] = queue_.Take([](const Waiting&) { return true; });
  waiting.place.reset();
  mutex_.Unlock();
  waiting.task();
  waiting.task = nullptr;  // with what it holds, which may want the mutex
  const std::chrono::duration<double, std::milli> took = clock_.SteadyNow() - turn->began;
  mutex_.Lock();
  queue_.Finish(*turn, took.count());
}

}  // namespace kiln::server
