// SPDX-License-Identifier: Apache-2.0
//
// Ranks and compiles a tuning's candidates through the flow that every compile takes, and measures them in the workers of one device.
//
// Threads. As Bench says; Measure and Compare are called by the tuning's thread alone. Ends of compiles and of the device's jobs come on other
// threads. One mutex, under which nothing is called.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "kiln/v1/run.pb.h"
#include "kiln/v1/tune.pb.h"
#include "server/access/caller.h"
#include "server/access/quotas.h"
#include "server/flow/compile_flow.h"
#include "server/pool/device_pool.h"
#include "server/tune/bench.h"
#include "server/tune/data/tune_tensors.h"
#include "server/tune/device_turns.h"

namespace kiln::server {

// How many candidates are compiled at one time, of all tunings together.
class CompileShare {
 public:
  explicit CompileShare(unsigned most) : most_(most) {}
  bool Take() {
    for (unsigned now = taken_; now < most_;) {
      if (taken_.compare_exchange_weak(now, now + 1)) return true;
    }
    return false;
  }
  void Give() { --taken_; }
  unsigned taken() const { return taken_; }
  unsigned most() const { return most_; }

 private:
  const unsigned most_;
  std::atomic<unsigned> taken_ = 0;
};

class DeviceBench final : public Bench, public std::enable_shared_from_this<DeviceBench> {
 public:
  struct Parts {
    CompileFlow& compile;
    Quotas& quotas;
    CompileShare& share;
    DeviceTurns& turns;
    std::atomic<std::uint64_t>& device_microseconds;  // that all tunings together kept devices busy
    const cache::Clock& clock;
  };
  struct Work {
    std::string request_id;
    Caller caller;
    DevicePool::Found device;
    std::vector<DevicePool::Found> others;     // of the same model, that measure as well
    std::vector<v1::CompileRequest> programs;  // without a module: with that of the first
    v1::EstimateOptions estimate;              // of the device and the arguments
    std::unique_ptr<TuneTensors> tensors;
    std::uint64_t session = 0;
  };

  DeviceBench(Parts parts, Work work) : parts_(parts), work_(std::move(work)), candidates_(work_.programs.size()) {}

  bool MayCompile() override { return parts_.share.Take(); }
  void Rank(std::size_t candidate, std::move_only_function<void(Ranked)> done) override;
  void Compile(std::size_t candidate, std::move_only_function<void(Compiled)> done) override;
  std::vector<std::string> Devices() const override;
  Measured Measure(std::size_t candidate, unsigned samples, std::chrono::milliseconds limit, cache::SteadyTime until, std::size_t device) override;
  Measured MeasureEnergy(std::size_t candidate, std::chrono::milliseconds limit, cache::SteadyTime until) override;
  Compared Compare(std::size_t candidate, std::size_t reference, std::chrono::milliseconds limit, cache::SteadyTime until) override;
  void Stop() override;

 private:
  // A call of the compile flow, from before it is known until it ends.
  struct Job {
    std::shared_ptr<CompileFlow::Call> call;
    bool under_way = false;
  };
  struct Candidate {
    Job ranking, compiling;  // the planner may still be at it when the compile begins
    std::optional<Reply> kernel;
  };
  // What a run left behind.
  struct Outputs {
    std::size_t candidate = 0;
    std::shared_ptr<RunMemory> memory;
    v1::DeviceResult said;
  };
  struct Failed {
    bool of_candidate = false;  // else of the device, or nobody waits any more
    v1::TuneOutcome outcome = v1::TUNE_NOT_REACHED;
    std::string problem;
  };

  bool emulated() const { return work_.device.threads > 0; }
  v1::CompileRequest Whole(std::size_t candidate) const;
  using Ended = std::function<void(Outcome)>;
  void Start(std::size_t candidate, Job Candidate::* job, std::string bytes, const cache::Digest& digest, Ended ended);
  void Over(std::size_t candidate, Job Candidate::* job);
  Reply KernelOf(std::size_t candidate);
  std::expected<void, Failed> PrepareOnce(const Reply& kernel);
  bool stopped();
  const DevicePool::Found& DeviceAt(std::size_t device) const { return device == 0 ? work_.device : work_.others[device - 1]; }
  void Describe(const Reply& kernel, const RunMemory& memory, std::chrono::milliseconds limit, v1::DeviceRun& run) const;
  DeviceOutcome Await(v1::DeviceJob job, int memory, std::chrono::milliseconds limit, cache::SteadyTime until, std::size_t device = 0);
  Failed TooLong(std::string_view stage) const;
  std::expected<v1::DeviceResult, Failed> Judge(DeviceOutcome outcome) const;
  struct Answer {
    v1::DeviceResult said;
    std::chrono::microseconds took{0}, running{0};
  };
  using Said = std::expected<Answer, Measured>;  // or how the measurement ended without one
  Said Ask(std::size_t candidate, v1::DeviceMeasure measure, std::chrono::milliseconds limit, cache::SteadyTime until, std::size_t device);
  std::expected<Outputs, Failed> RunOnce(std::size_t candidate, std::chrono::milliseconds limit, cache::SteadyTime until);

  const Parts parts_;
  Work work_;
  std::optional<std::expected<void, Failed>> prepared_;  // of the tuning's thread, as the next
  std::optional<Outputs> reference_;
  cache::Mutex mutex_;
  cache::CondVar ended_;
  std::vector<Candidate> candidates_ KILN_GUARDED_BY(mutex_);
  bool stopped_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
