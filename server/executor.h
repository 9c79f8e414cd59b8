// SPDX-License-Identifier: Apache-2.0
//
// A few threads and a bounded queue, for what must not block gRPC's threads: decoding, SQLite, maintenance.
//
// Tenants share the threads' time equally (fair_share.h), each first come, first served: the time that a task keeps a thread from others,
// whether it computes or waits there for memory (decoding_room.h). They share the places in the queue by the rule of
// tenant_budget.h: one's flood neither fills the queue nor makes another wait for more than what is being done already.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/fair_share.h"
#include "server/tenant_budget.h"

namespace kiln::server {

class Executor {
 public:
  using Task = std::move_only_function<void()>;

  Executor(unsigned threads, std::size_t capacity);
  ~Executor();  // runs what is queued, then joins

  // False when the queue has no place for the tenant; the task is untouched then.
  bool Post(const std::string& tenant, Task& task);

  // Puts the task before all others, however full the queue is, and charges no tenant: it ends a call that was accepted long ago.
  void PostFirst(Task task);

  // As Post, however full the queue is: what goes on with something accepted long ago.
  void Resume(const std::string& tenant, Task task);

 private:
  struct Waiting {
    Task task;
    std::optional<TenantBudget::Charge> place;
  };
  using Lines = std::map<std::string, std::deque<Waiting>>;

  void Run();
  void RunOne(std::unique_lock<std::mutex>& lock, Lines::iterator line);
  Lines::iterator FairestLine();

  TenantBudget places_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Task> first_;
  Lines lines_;  // of tenants for whom something waits
  FairShare shares_;
  bool closed_ = false;
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace kiln::server
