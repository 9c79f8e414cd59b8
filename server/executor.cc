// SPDX-License-Identifier: Apache-2.0
#include "server/executor.h"

#include <utility>

#include "server/thread_niceness.h"

namespace kiln::server {

Executor::Executor(unsigned threads, std::size_t capacity) : capacity_(capacity) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

bool Executor::Post(Task& task) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || tasks_.size() >= capacity_) return false;
    tasks_.push_back(std::move(task));
  }
  arrived_.notify_one();
  return true;
}

void Executor::PostFirst(Task task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_front(std::move(task));
  }
  arrived_.notify_one();
}

void Executor::Run() {
  YieldToAnswers();
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace kiln::server
