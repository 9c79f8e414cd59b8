// SPDX-License-Identifier: Apache-2.0
#include "server/device_line.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "server/wakeup.h"
#include "server/worker.h"

namespace kiln::server {
namespace {

using Clock = std::chrono::steady_clock;

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
      const auto began = Clock::now();
      DeviceOutcome outcome = RunWithRetry(*task);
      outcome.ran = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
      outcome.queue_ms = std::chrono::duration<double, std::milli>(began - task->queued).count();
      line_.counters_.busy_microseconds += static_cast<std::uint64_t>(outcome.ran.count());
      --line_.busy_;
      const bool spent = outcome.event.result().unusable() || (worker_ && worker_->jobs() >= line_.options_.jobs_per_worker);
      task->done(std::move(outcome));
      task.reset();
      if (spent) Worker::Retire(worker_);
    }
    Worker::Retire(worker_);
  }

  DeviceOutcome RunWithRetry(DeviceTask& task) {
    bool blameless = false;
    DeviceOutcome outcome = RunOnce(task, blameless);
    if (blameless && !stopping_ && !task.stop.stop_requested()) outcome = RunOnce(task, blameless);
    return outcome;
  }

  // `blameless` tells that the worker's end had nothing to do with the task.
  DeviceOutcome RunOnce(DeviceTask& task, bool& blameless) {
    if (!worker_) {
      auto worker = Worker::Start(line_.zygote_, line_.options_.role);
      if (!worker) return {.end = DeviceOutcome::End::kNoWorker, .cause = std::move(worker.error())};
      worker_.emplace(std::move(*worker));
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
    if (end == Channel::End::kWoken) return outcome;
    outcome.end = end == Channel::End::kDeadline ? DeviceOutcome::End::kTimeout : DeviceOutcome::End::kDied;
    if (outcome.end == DeviceOutcome::End::kDied && !blameless) ++line_.counters_.crashes;
    line_.options_.on_replaced(task.request_id, outcome.cause);
    return outcome;
  }

  Channel::End Converse(DeviceTask& task, DeviceOutcome& outcome) {
    const auto take = [&](v1::DeviceEvent& event) {
      const bool last = event.has_result() || event.has_devices();
      if (last) {
        outcome.event = std::move(event);
      } else {
        outcome.stage = event.started();
      }
      return last;
    };
    return worker_->Converse<v1::DeviceEvent>(task.job, wakeup_.fd(), task.limit, take, task.memory);
  }

  DeviceLine& line_;
  Wakeup wakeup_;
  std::atomic<bool> stopping_ = false;
  std::optional<Worker> worker_;
  std::thread thread_;  // last: it uses the others
};

DeviceLine::DeviceLine(Options options, Zygote& zygote) : options_(std::move(options)), zygote_(zygote) {
  for (unsigned i = 0; i < options_.workers; ++i) slots_.push_back(std::make_unique<Slot>(*this));
}

DeviceLine::~DeviceLine() {
  Close();
  slots_.clear();
}

bool DeviceLine::Submit(std::unique_ptr<DeviceTask>& task) {
  std::deque<std::unique_ptr<DeviceTask>> abandoned;
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= options_.queue) {
      const auto kept = std::stable_partition(waiting_.begin(), waiting_.end(),
                                              [](const auto& waits) { return !waits->stop.stop_requested(); });
      std::move(kept, waiting_.end(), std::back_inserter(abandoned));
      waiting_.erase(kept, waiting_.end());
    }
    if (closed_ || waiting_.size() >= options_.queue) return false;
    task->job.set_id(++last_id_);
    task->queued = Clock::now();
    waiting_.push_back(std::move(task));
  }
  arrived_.notify_all();
  for (const auto& gone : abandoned) gone->done({});
  return true;
}

std::unique_ptr<DeviceTask> DeviceLine::Take(const Slot& slot) {
  std::unique_lock lock(mutex_);
  for (;;) {
    idle_.push_back(&slot);
    arrived_.wait(lock, [&] { return closed_ || (!waiting_.empty() && idle_.back() == &slot); });
    if (closed_) return nullptr;
    idle_.pop_back();
    std::unique_ptr<DeviceTask> task = std::move(waiting_.front());
    waiting_.pop_front();
    arrived_.notify_all();  // the next slot's turn, if more waits
    if (!task->stop.stop_requested()) return task;
    lock.unlock();
    task->done({});
    task.reset();
    lock.lock();
  }
}

void DeviceLine::Close() {
  std::deque<std::unique_ptr<DeviceTask>> rest;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    rest.swap(waiting_);
  }
  arrived_.notify_all();
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
  std::lock_guard lock(mutex_);
  stats.set_queued(static_cast<std::uint32_t>(waiting_.size()));
  return stats;
}

}  // namespace kiln::server
