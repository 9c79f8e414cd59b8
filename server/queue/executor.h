// SPDX-License-Identifier: Apache-2.0
//
// A few threads and a bounded queue, for what must not block gRPC's threads: decoding, SQLite, maintenance.
//
// Tenants share the threads' time equally (fair_queue.h), each first come, first served: the time that a task keeps a thread from others,
// whether it computes or waits there for memory (decoding_room.h). They share the places in the queue by the rule of tenant_budget.h, since
// what is resumed waits without a place. A flood of one tenant neither fills the queue, nor makes another tenant wait for longer than the
// tasks that are running.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "server/queue/fair_queue.h"
#include "server/queue/tenant_budget.h"

namespace kiln::server {

class Executor {
 public:
  using Task = std::move_only_function<void()>;

  Executor(unsigned threads, std::size_t capacity, const cache::Clock& clock);
  ~Executor();  // runs what is queued, then joins

  // False when the queue has no place for the tenant; the task is untouched then.
  bool Post(const std::string& tenant, Task& task);

  // Puts the task before all others, even if the queue is full, and charges no tenant: such a task finishes a call that was accepted long
  // ago.
  void PostFirst(Task task);

  // As Post, even if the queue is full, for a task that continues something accepted long ago.
  void Resume(const std::string& tenant, Task task);

 private:
  struct Waiting {
    Task task;
    std::optional<TenantBudget::Charge> place;
  };

  void Run();
  void RunOne() KILN_REQUIRES(mutex_);

  const cache::Clock& clock_;
  TenantBudget places_;
  cache::Mutex mutex_;
  cache::CondVar arrived_;
  std::deque<Task> first_ KILN_GUARDED_BY(mutex_);
  FairQueue<Waiting> queue_ KILN_GUARDED_BY(mutex_);
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace kiln::server
