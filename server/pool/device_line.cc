// SPDX-License-Identifier: Apache-2.0
#include "server/pool/device_line.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "server/pool/worker.h"
#include "server/queue/worker_turn.h"
#include "server/system/wakeup.h"

namespace kiln::server {
namespace {

std::size_t ClassOf(const DeviceTask& task) { return task.tuning ? 1 : 0; }

}  // namespace

class DeviceLine::Slot {
 public:
  explicit Slot(DeviceLine& line) : line_(line), thread_([this] { Run(); }) {}

  ~Slot() {
    Stop();
    thread_.join();
  }

  void Stop() {
    stopping_ = true;
    wakeup_.Set();
  }

 private:
  void Run() {
    while (std::unique_ptr<DeviceTask> task = line_.Take(*this)) {
      ++line_.busy_;
      if (worker_ && owner_ != task->tenant) Worker::Retire(worker_);  // may take a while, which must not count as the next run's time
      const auto began = line_.clock_.SteadyNow();
      auto outcome = TakeTurn<DeviceOutcome>(*task, stopping_, [this](DeviceTask& one, bool& blameless) { return RunOnce(one, blameless); });
      outcome.ran = std::chrono::duration_cast<std::chrono::microseconds>(line_.clock_.SteadyNow() - began);
      outcome.queue_ms = std::chrono::duration<double, std::milli>(began - task->queued).count();
      line_.counters_.busy_microseconds += static_cast<std::uint64_t>(outcome.ran.count());
      --line_.busy_;
      // A tuning makes hundreds of short jobs, between which a driver must not start anew: the next run replaces the worker.
      const bool aged = worker_ && worker_->jobs() >= line_.options_.jobs_per_worker && !task->tuning;
      const bool spent = outcome.event.result().unusable() || aged;
      line_.Finished(*this, *task, outcome.ran, spent);
      task->done(std::move(outcome));
      task.reset();
      if (spent) Worker::Retire(worker_);
    }
    Worker::Retire(worker_);
  }

  // `blameless`: the worker's end had nothing to do with the task.
  DeviceOutcome RunOnce(DeviceTask& task, bool& blameless) {
    if (!worker_) {
      auto worker = Worker::Start(line_.zygote_, line_.options_.role, line_.options_.device);
      if (!worker) return {.end = DeviceOutcome::End::kNoWorker, .cause = std::move(worker.error())};
      worker_.emplace(std::move(*worker));
      owner_ = task.tenant;
    }
    const bool fresh = worker_->BeginJob() == 0;
    wakeup_.Clear();
    const std::stop_callback on_stop(task.stop, [this] { wakeup_.Set(); });
    DeviceOutcome outcome;
    const Channel::End end = stopping_ ? Channel::End::kWoken : Converse(task, outcome);
    if (end == Channel::End::kOk) {
      outcome.end = DeviceOutcome::End::kResult;
      return outcome;
    }
    Worker::Death death = worker_->Bury(end);
    worker_.reset();
    const bool started = !outcome.stage.empty();
    blameless = end == Channel::End::kClosed ? (!fresh && !started) || death.with_zygote : end == Channel::End::kDeadline && !started;
    outcome.cause = std::move(death.cause);
    outcome.said = std::move(death.said);
    if (end == Channel::End::kWoken) return outcome;
    outcome.end = end == Channel::End::kDeadline ? DeviceOutcome::End::kTimeout : DeviceOutcome::End::kDied;
    if (outcome.end == DeviceOutcome::End::kDied && !blameless) ++line_.counters_.crashes;
    line_.options_.on_replaced(task.request_id, outcome.cause);
    return outcome;
  }

  Channel::End Converse(DeviceTask& task, DeviceOutcome& outcome) {
    std::optional<cache::SteadyTime> runs_since;
    const auto take = [&](v1::DeviceEvent& event) {
      const bool last = event.has_result() || event.has_devices() || event.has_states();
      if (last) {
        outcome.event = std::move(event);
        if (runs_since) outcome.running = std::chrono::duration_cast<std::chrono::microseconds>(line_.clock_.SteadyNow() - *runs_since);
      } else {
        outcome.stage = event.started();
        if (outcome.stage == "run") runs_since = line_.clock_.SteadyNow();
      }
      return last;
    };
    return worker_->Converse<v1::DeviceEvent>(task.job, wakeup_.fd(), task.limit, take, task.memory, task.run_limit);
  }

  DeviceLine& line_;
  Wakeup wakeup_;
  std::atomic<bool> stopping_ = false;
  std::optional<Worker> worker_;
  std::string owner_;   // the tenant whose runs the worker has seen
  std::thread thread_;  // last: it uses the others
};

DeviceLine::DeviceLine(Options options, Zygote& zygote, const cache::Clock& clock)
    : options_(std::move(options)), zygote_(zygote), clock_(clock), queue_({kFirstEstimateMs, options_.queue, {0, 1}}, clock) {
  for (unsigned i = 0; i < options_.workers; ++i) slots_.push_back(std::make_unique<Slot>(*this));
}

DeviceLine::~DeviceLine() {
  Close();
  slots_.clear();
}

bool DeviceLine::Submit(std::unique_ptr<DeviceTask>& task) {
  // If the token fires before the task is in its line, Enqueue sees that; if it fires later, the callback waits for the mutex.
  task->on_stop.emplace(task->stop, [this, which = task.get()] { Withdraw(*which); });
  if (!Enqueue(task)) {
    task->on_stop.reset();
    return false;
  }
  if (task) std::exchange(task, nullptr)->done({});
  arrived_.NotifyAll();
  return true;
}

// Does not take a task that nobody waits for any more.
bool DeviceLine::Enqueue(std::unique_ptr<DeviceTask>& task) {
  cache::MutexLock lock(mutex_);
  if (closed_ || !queue_.HasRoomFor(task->tenant, ClassOf(*task))) return false;
  if (task->stop.stop_requested()) return true;
  task->job.set_id(++last_id_);
  DeviceTask& waiting = *task;
  waiting.queued = queue_.Push(waiting.tenant, ClassOf(waiting), std::move(task));
  return true;
}

// Nobody waits for the task any more. If it was taken already, its slot deals with it.
void DeviceLine::Withdraw(const DeviceTask& task) {
  std::optional<std::unique_ptr<DeviceTask>> found;
  {
    cache::MutexLock lock(mutex_);
    found = queue_.Remove(task.tenant, [&](const auto& waiting) { return waiting.get() == &task; });
  }
  if (!found) return;
  arrived_.NotifyAll();  // it may be another tenant's turn, and so another slot's
  (*found)->done({});
}

std::unique_ptr<DeviceTask> DeviceLine::Take(Slot& slot) {
  cache::MutexLock lock(mutex_);
  for (;;) {
    if (std::ranges::find(idle_, &slot) == idle_.end()) idle_.push_back(&slot);
    if (queue_.size() > 0) arrived_.NotifyAll();  // what waited for this slot may be another's by now, which sleeps
    arrived_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return closed_ || (queue_.size() > 0 && IsTurnOf(slot)); });
    if (closed_) return nullptr;
    std::erase(idle_, &slot);
    auto [task, turn] = queue_.Take([](const auto& next) { return !next->stop.stop_requested(); });
    arrived_.NotifyAll();  // the next slot's turn, if more waits
    if (turn) {
      served_[&slot] = task->tenant;
      task->turn = std::move(*turn);
      return std::move(task);
    }
    lock.Unlock();
    task->done({});
    task.reset();
    lock.Lock();
  }
}

// A slot that keeps its worker is idle already when the run's client hears of the end: its next run finds the worker.
void DeviceLine::Finished(Slot& slot, const DeviceTask& task, std::chrono::microseconds ran, bool spent) {
  cache::MutexLock lock(mutex_);
  if (!spent) idle_.push_back(&slot);
  queue_.Finish(task.turn, std::chrono::duration<double, std::milli>(ran).count());
}

// Chooses a slot if a task waits and a slot is idle. First comes the tenant's own worker, then a slot without a worker, then the one that
// has been idle longest, because clients of the others are more likely to return.
bool DeviceLine::IsTurnOf(const Slot& slot) const {
  const auto last_of = [this](const std::string& tenant) KILN_REQUIRES(mutex_) -> const Slot* {
    const auto serves = [&](const Slot* idle) KILN_REQUIRES(mutex_) {
      const auto served = served_.find(idle);
      return served == served_.end() ? tenant.empty() : served->second == tenant;
    };
    const auto at = std::find_if(idle_.rbegin(), idle_.rend(), serves);
    return at == idle_.rend() ? nullptr : *at;
  };
  const Slot* best = last_of(queue_.NextTenant());
  if (best == nullptr) best = last_of({});
  return (best == nullptr ? idle_.front() : best) == &slot;
}

void DeviceLine::Close() {
  std::vector<std::unique_ptr<DeviceTask>> rest;
  {
    cache::MutexLock lock(mutex_);
    closed_ = true;
    rest = queue_.Clear();
  }
  arrived_.NotifyAll();
  for (const auto& slot : slots_) slot->Stop();
  for (const auto& task : rest) task->done({});
}

v1::DeviceStats DeviceLine::Stats() const {
  v1::DeviceStats stats;
  stats.set_name(options_.name);
  stats.set_workers(options_.workers);
  stats.set_busy(busy_);
  stats.set_runs(counters_.runs);
  stats.set_faults(counters_.faults);
  stats.set_worker_crashes(counters_.crashes);
  stats.set_busy_seconds(static_cast<double>(counters_.busy_microseconds) / 1e6);
  cache::MutexLock lock(mutex_);
  stats.set_queued(static_cast<std::uint32_t>(queue_.size()));
  return stats;
}

}  // namespace kiln::server
