// SPDX-License-Identifier: Apache-2.0
//
// The compile workers: as many slots as configured, each a thread that takes jobs from the admission queue and has one worker
// process at a time.
//
// A worker that ends, exceeds the job's time or sends invalid messages fails that job and is replaced. A worker is also replaced if nobody
// waits for its job any more (killing is the only way to stop LLVM), or after a certain number of jobs. If a worker was dead or stopped
// before it began the job, or died with its zygote, the job is not at fault and gets another worker, once. Nor is the job at fault if
// somebody killed the worker in the middle, as the host does when memory is short; such a job is not tried again at once.
//
// A worker serves one tenant. kilnd signs what workers say, so a worker that a tenant's program may have taken over must end before another
// tenant's program is compiled.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cache/clock.h"
#include "server/pool/zygote.h"
#include "server/queue/admission.h"

namespace kiln::server {

struct WorkerPoolOptions {
  unsigned workers = 1;
  unsigned jobs_per_worker = 200;
  // Told when a worker had to be replaced for `cause`.
  std::function<void(std::string_view request_id, std::string_view cause)> on_replaced;
};

class WorkerPool {
 public:
  WorkerPool(WorkerPoolOptions options, Admission& admission, Zygote& zygote, const cache::Clock& clock);
  ~WorkerPool();  // stops

  // Closes the queue, stops running jobs as kCancelled, joins. It may still be asked how many workers there are.
  void Stop();

  unsigned workers() const { return options_.workers; }
  unsigned busy() const { return busy_; }

 private:
  class Slot;

  const WorkerPoolOptions options_;
  Admission& admission_;
  Zygote& zygote_;
  const cache::Clock& clock_;
  std::atomic<unsigned> busy_ = 0;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace kiln::server
