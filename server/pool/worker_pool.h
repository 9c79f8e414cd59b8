// SPDX-License-Identifier: Apache-2.0
//
// The compile workers: as many slots as configured, each a thread that takes jobs from the admission queue and has one worker
// process at a time.
//
// A worker that ends, hangs past the job's time or speaks nonsense costs that job and is replaced. So is one whose job nobody
// waits for any more (killing is the only way to stop LLVM) and one that has done its share of jobs. A worker that was found
// dead or stopped before it began the job, or that died with its zygote, is no fault of the job's: the job gets another, once. So is
// one that somebody killed in the middle, as the host does where memory is short: that is not tried again at once.
//
// A worker serves one tenant. What a tenant's program might have made of it dies with it before another's is compiled, for kilnd
// signs what workers say.
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
