// SPDX-License-Identifier: Apache-2.0
#include "server/pool/worker_pool.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "server/pool/worker.h"
#include "server/queue/worker_turn.h"
#include "server/system/wakeup.h"
#include "server/worker/channel.h"

namespace kiln::server {
class WorkerPool::Slot {
 public:
  explicit Slot(WorkerPool& pool) : pool_(pool), thread_([this] { Run(); }) {}

  ~Slot() {
    stopping_ = true;
    wakeup_.Set();
    thread_.join();
  }

 private:
  void Run() {
    KeepWarm();
    while (std::unique_ptr<Job> job = pool_.admission_.Take()) {
      ++pool_.busy_;
      LeaveToOwner(job->caller.tenant);
      const auto began = pool_.clock_.SteadyNow();
      auto outcome = TakeTurn<JobOutcome>(*job, stopping_, [this](Job& one, bool& blameless) { return RunOnce(one, blameless); });
      outcome.ran = std::chrono::duration_cast<std::chrono::microseconds>(pool_.clock_.SteadyNow() - began);
      outcome.queue_ms = std::chrono::duration<double, std::milli>(began - job->queued).count();
      pool_.admission_.Finished(*job, outcome);
      --pool_.busy_;
      job->done(std::move(outcome));
      job.reset();
      KeepWarm();
    }
    Worker::Retire(worker_);
  }

  // So that the next job finds a worker ready.
  void KeepWarm() {
    if (worker_ && worker_->jobs() >= pool_.options_.jobs_per_worker) Worker::Retire(worker_);
    if (!worker_ && !stopping_) {
      if (auto worker = Worker::Start(pool_.zygote_, WorkerRole::kCompile)) worker_.emplace(std::move(*worker));
    }
  }

  // Before the job's time counts: a worker that a tenant has taken over may be slow to go.
  void LeaveToOwner(const std::string& tenant) {
    if (worker_ && worker_->jobs() > 0 && owner_ != tenant) Worker::Retire(worker_);
  }

  // `blameless` tells that the worker's end had nothing to do with the job.
  JobOutcome RunOnce(Job& job, bool& blameless) {
    if (!worker_) {
      auto worker = Worker::Start(pool_.zygote_, WorkerRole::kCompile);
      if (!worker) return {.end = JobOutcome::End::kNoWorker, .cause = std::move(worker.error())};
      worker_.emplace(std::move(*worker));
    }
    owner_ = job.caller.tenant;
    const bool fresh = worker_->BeginJob() == 0;
    wakeup_.Clear();
    const std::stop_callback on_stop(job.stop, [this] { wakeup_.Set(); });

    JobOutcome outcome;
    const Channel::End end = Converse(job, outcome);
    if (end == Channel::End::kOk) return outcome;
    Worker::Death death = worker_->Bury(end);
    worker_.reset();
    const bool began = !outcome.stage.empty();
    blameless = end == Channel::End::kClosed ? (!fresh && !began) || death.with_zygote : end == Channel::End::kDeadline && !began;
    outcome.cause = std::move(death.cause);
    outcome.said = std::move(death.said);
    if (end == Channel::End::kWoken) outcome.end = JobOutcome::End::kCancelled;
    else outcome.end = blameless || death.from_outside ? JobOutcome::End::kLost : JobOutcome::End::kDied;
    outcome.killed = death.from_outside && !blameless;
    pool_.options_.on_replaced(job.request_id, outcome.cause);
    return outcome;
  }

  Channel::End Converse(Job& job, JobOutcome& outcome) {
    if (stopping_) return Channel::End::kWoken;
    using Duration = std::chrono::steady_clock::duration;
    const auto limit = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(job.work.timeout_seconds()));
    return worker_->Converse<v1::WorkerEvent>(job.work, wakeup_.fd(), limit, [&](v1::WorkerEvent& event) {
      if (event.has_result()) {
        outcome.end = JobOutcome::End::kResult;
        outcome.result = std::move(*event.mutable_result());
        return true;
      }
      outcome.stage = event.started();
      job.on_stage(outcome.stage);
      return false;
    });
  }

  WorkerPool& pool_;
  Wakeup wakeup_;
  std::atomic<bool> stopping_ = false;
  std::optional<Worker> worker_;
  std::string owner_;   // the tenant whose jobs the worker has seen
  std::thread thread_;  // last: it uses the others
};

WorkerPool::WorkerPool(WorkerPoolOptions options, Admission& admission, Zygote& zygote, const cache::Clock& clock)
    : options_(std::move(options)), admission_(admission), zygote_(zygote), clock_(clock) {
  for (unsigned i = 0; i < options_.workers; ++i) slots_.push_back(std::make_unique<Slot>(*this));
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Stop() {
  admission_.Close();
  slots_.clear();
}

}  // namespace kiln::server
