// SPDX-License-Identifier: Apache-2.0
//
// The devices of this host: one line for all that is emulated, one for each GPU.
//
// At the start a worker lists the GPUs; it also tries whether their driver works in the closed sandbox (sandbox.h). If it does not, a
// worker in a loose sandbox tries. If that one succeeds, a closed one tries once more, because the trouble may have been temporary. Only if
// it fails again, the workers that run kernels are loose as well. A closed worker that takes too long is asked a second time before any of
// this. Workers of HIP devices are always loose, because the system calls of that driver are not known.
//
// Threads. Devices waits for the answer for a while; a task for a GPU is parked until the GPUs are known. All members may be called from
// any thread. Lines live as long as the pool.
#pragma once

#include <chrono>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "kiln/v1/run.pb.h"
#include "server/pool/device_line.h"
#include "server/pool/device_senses.h"
#include "server/reply/failure.h"

namespace kiln::server {

class DevicePool {
 public:
  struct Options {
    unsigned emulators = 1;  // emulated runs at one time; 0: none
    unsigned threads = 1;    // of this host, for one emulated run
    unsigned jobs_per_worker = 200;
    std::size_t queue = 256;
    std::function<void(std::string_view request_id, std::string_view cause)> on_replaced;
    // Called once, when it is known which GPUs there are. `trouble`: what fails in the closed sandbox; the list then has the protections of
    // a wider one in which it works, if there is one.
    std::function<void(const v1::DeviceList& gpus, std::string_view trouble)> on_listed;
  };

  DevicePool(Options options, Zygote& zygote, const cache::Clock& clock);
  ~DevicePool();

  struct Found {
    v1::DeviceInfo info;
    DeviceLine* line;
    unsigned threads;  // that one run may use; 0 on a GPU
  };
  // If it is not known yet whether the device exists: takes the task and runs it once it is known, on a thread that the task must not
  // block.
  bool Park(std::string_view name, std::move_only_function<void()>& task);

  // kNotFound names what there is, as far as it is known. Does not wait.
  std::expected<Found, Failure> Find(std::string_view name);

  // GPUs of this host that are of the same model: what they are called, what runs on them, their memory and their driver are the same.
  std::vector<Found> Like(const v1::DeviceInfo& device);

  // GPUs, as far as they are known after so long at most, then all that can be emulated.
  std::vector<v1::DeviceInfo> Devices(std::chrono::seconds patience);

  // Whether the list of GPUs is final.
  bool listed();

  // Why there is no GPU, where there is none, as each driver has it.
  std::vector<std::string> Problems();

  std::vector<v1::DeviceStats> Stats();
  // The same, and what the GPUs do now. `done` is called once, on any thread.
  void Sense(std::function<void(std::vector<v1::DeviceStats>)> done);

  // Ends all runs; those that come later are refused.
  void Close();

 private:
  // What earlier answers have told.
  struct Listing {
    std::string trouble;                  // of the last closed one
    bool late = false;                    // a closed one took too long
    std::optional<v1::DeviceList> loose;  // of one that had no trouble
  };
  void ListGpus(WorkerRole role, Listing so_far);
  void Listed(WorkerRole role, Listing so_far, DeviceOutcome outcome);
  void Settle(const v1::DeviceList& list, std::string_view trouble, WorkerRole role);
  void AddGpus(const v1::DeviceList& list, WorkerRole role);
  DeviceLine::Options ListerOptions(WorkerRole role) const;
  DeviceLine::Options LineOptions(std::string name, WorkerRole role, unsigned workers) const;
  void Unpark();

  struct Gpu {
    v1::DeviceInfo info;
    std::unique_ptr<DeviceLine> line;
  };

  const Options options_;
  Zygote& zygote_;
  const cache::Clock& clock_;
  std::unique_ptr<DeviceLine> emulators_;  // null: none
  cache::Mutex mutex_;
  cache::CondVar changed_;
  bool listed_ KILN_GUARDED_BY(mutex_) = false;
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
  std::vector<std::move_only_function<void()>> parked_ KILN_GUARDED_BY(mutex_);
  std::vector<Gpu> gpus_ KILN_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ KILN_GUARDED_BY(mutex_);
  DeviceSenses senses_;
  DeviceLine loose_lister_;
  DeviceLine lister_;  // last: what it finds goes to the others
};

}  // namespace kiln::server
