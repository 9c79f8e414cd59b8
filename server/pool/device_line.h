// SPDX-License-Identifier: Apache-2.0
//
// The runs for one device: a bounded queue, and as many worker processes as the device takes at one time. Tenants share the device equally
// (fair_queue.h); a tenant's own runs go first come first served. A run that nobody waits for any more leaves the queue at once, with the
// memory of its tensors. What a tuning measures is served only while no run waits.
//
// A worker serves one tenant, because a kernel may leave data in its memory or in its context on the device. When the slot's next run
// belongs to another tenant, the worker is ended and another started; a slot with a worker of the run's own tenant is preferred.
//
// Threads. Each worker has a slot with a thread of its own; any thread submits, and takes a run out whose stop token it fires. One mutex,
// under which no `done` runs and no task is destroyed, for that waits for its stop callback, which needs the mutex.
//
// A worker is killed and replaced at the next run if it ends, exceeds the run's time, or runs something that nobody waits for any more. If
// a worker was already dead before the run began, or died with its zygote, the run is not at fault: it gets another worker, once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "kiln/v1/run.pb.h"
#include "server/pool/zygote.h"
#include "server/queue/fair_queue.h"
#include "server/reply/failure.h"
#include "server/worker/worker_protocol.h"

namespace kiln::server {

struct DeviceOutcome {
  enum class End {
    kResult,
    kDied,       // `cause`
    kTimeout,    // it ran as long as it may
    kCancelled,  // nobody waits any more, or kilnd stops
    kNoWorker,   // `cause`
    kRefused,    // it was not begun: `refusal`
  };
  End end = End::kCancelled;
  v1::DeviceEvent event;  // kResult: what the worker said
  Failure refusal;
  std::string cause;  // "killed by SIGSEGV"
  std::string said;   // kDied: the end of what it wrote to stderr
  std::string stage;  // the last one that began
  std::chrono::microseconds ran{0};
  std::chrono::microseconds running{0};  // of that, since the stage "run" began
  double queue_ms = 0;
};

struct DeviceTask {
  std::string request_id;
  std::string tenant;
  bool tuning = false;  // it waits while any run does
  v1::DeviceJob job;    // the line numbers it
  int memory = -1;      // a descriptor that stays open until `done` is called
  std::chrono::milliseconds limit{0};
  std::optional<std::chrono::milliseconds> run_limit = std::nullopt;  // from the stage "run" on; none: `limit` counts on
  std::stop_token stop;  // fires when nobody waits for it any more: a run that waits then leaves its line at once
  std::chrono::steady_clock::time_point queued{};
  FairTurn turn;                                                     // by the line
  std::function<std::expected<void, Failure>()> may_begin;           // asked when its turn has come; empty: it may
  std::move_only_function<void(DeviceOutcome)> done;                 // called once
  std::optional<std::stop_callback<std::function<void()>>> on_stop;  // the line's; last, so that it goes before what it uses
};

// What is counted of a device, for Stats and the metrics.
struct DeviceCounters {
  std::atomic<std::uint64_t> runs = 0;
  std::atomic<std::uint64_t> faults = 0;  // runs with any
  std::atomic<std::uint64_t> crashes = 0;
  std::atomic<std::uint64_t> busy_microseconds = 0;
};

class DeviceLine {
 public:
  struct Options {
    std::string name;         // "emu", "cuda:0"
    std::string device = {};  // that its workers open before their first run; of GPUs
    WorkerRole role = WorkerRole::kEmulator;
    unsigned workers = 1;
    unsigned jobs_per_worker = 200;
    std::size_t queue = 256;
    // Told when a worker had to be replaced for `cause`.
    std::function<void(std::string_view request_id, std::string_view cause)> on_replaced;
  };

  DeviceLine(Options options, Zygote& zygote, const cache::Clock& clock);
  ~DeviceLine();

  // Takes the task, or leaves it where it is: too many wait, or the line is closed.
  bool Submit(std::unique_ptr<DeviceTask>& task);

  // Ends waiting and running tasks as kCancelled, and takes no more.
  void Close();

  v1::DeviceStats Stats() const;
  DeviceCounters& counters() { return counters_; }

 private:
  class Slot;
  static constexpr double kFirstEstimateMs = 50;

  std::unique_ptr<DeviceTask> Take(Slot& slot);
  void Finished(Slot& slot, const DeviceTask& task, std::chrono::microseconds ran, bool spent);
  bool Enqueue(std::unique_ptr<DeviceTask>& task);
  void Withdraw(const DeviceTask& task);
  bool IsTurnOf(const Slot& slot) const KILN_REQUIRES(mutex_);

  const Options options_;
  Zygote& zygote_;
  const cache::Clock& clock_;
  DeviceCounters counters_;
  std::atomic<unsigned> busy_ = 0;
  std::atomic<std::uint64_t> last_id_ = 0;
  mutable cache::Mutex mutex_;
  cache::CondVar arrived_;
  FairQueue<std::unique_ptr<DeviceTask>> queue_ KILN_GUARDED_BY(mutex_);
  std::map<const Slot*, std::string> served_ KILN_GUARDED_BY(mutex_);  // the tenant of each slot's last run
  std::vector<Slot*> idle_ KILN_GUARDED_BY(mutex_);                    // the last is the one that ran last: its worker has the program perhaps
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Slot>> slots_;  // last: they use the others
};

}  // namespace kiln::server
