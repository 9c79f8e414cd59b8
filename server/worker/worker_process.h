// SPDX-License-Identifier: Apache-2.0
//
// The worker executable's two lives.
//
// As a zygote (`--zygote`) it initialises the compiler while it is single-threaded, then waits on kWorkerFd for commands and
// forks a worker for each kFork. It never starts a thread, so a fork is safe and costs a millisecond; LLVM's initialised
// memory is shared. When kilnd goes away its end of the socket closes, the zygote ends, and PDEATHSIG ends the workers.
//
// As a worker (a fork of the zygote, or an executable started with `--worker`, as `kiln compile --local` does) it enters the
// sandbox of its role and serves one job after the other until its socket closes. A compile worker keeps nothing between jobs; a
// device worker keeps what it loaded (WorkerProgram::make_device). A GPU's starts its driver first, closes the sandbox behind it, and
// only then reads its first job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/v1/compile.pb.h"
#include "kiln/v1/run.pb.h"
#include "server/worker/worker_protocol.h"

namespace kiln::server {

// What the executable can do; a test's worker has another `compile`.
struct WorkerProgram {
  std::string_view build_id;
  std::vector<std::string_view> passes;  // for `kiln explain --after`
  std::function<void()> initialize;
  using OnStage = std::function<void(std::string_view stage)>;
  struct JobHooks {
    OnStage on_stage;
    std::function<bool()> cancelled;
    std::string ptxas;
  };
  std::function<v1::WorkerResult(const v1::WorkerJob&, const JobHooks&)> compile;

  // The program of a device worker; made in the worker, not in the zygote. `memory` is the job's; invalid if the job came without any.
  class Device {
   public:
    virtual ~Device() = default;
    // Starts the drivers and opens `device` where one is named. What fails is the answer to the jobs.
    virtual void Start(std::string_view) {}
    // For a GPU's worker that was given no device: why no driver works, as far as it can be tried; empty: one works.
    virtual std::string Trouble() { return {}; }
    virtual v1::DeviceList List() = 0;
    // What these GPUs do now, in their order; of a kSensors worker.
    virtual v1::DeviceStates Sense(const v1::DeviceSense&) { return {}; }
    virtual v1::DeviceResult Run(const v1::DeviceRun& run, int memory, const OnStage& on_stage) = 0;
    virtual v1::DeviceResult Measure(const v1::DeviceMeasure& measure, int memory, const OnStage& on_stage) = 0;
  };
  std::function<std::unique_ptr<Device>(WorkerRole)> make_device;  // may be empty: no such workers
};

// main() of a worker executable.
int WorkerMain(int argc, char** argv, const WorkerProgram& program);

}  // namespace kiln::server
