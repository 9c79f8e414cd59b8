// SPDX-License-Identifier: Apache-2.0
//
// What a tuning asks of the outside: to compile, to measure, to compare. A test gives one that makes the answers up.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/clock.h"
#include "kiln/v1/tune.pb.h"
#include "server/reply/failure.h"

namespace kiln::server {

class Bench {
 public:
  struct Compiled {
    std::string key;                     // of the result; empty: there is none
    std::string problem;                 // why the program does not compile
    std::optional<Failure> prevented{};  // why it was not compiled, where that has nothing to do with the program
  };
  struct Ranked {
    std::optional<v1::Estimate> estimate;  // what the planner expects of it; nothing: it says nothing
    std::string problem{};                 // why the program does not compile
    std::optional<Failure> prevented{};    // why the planner was not asked
  };
  struct Measured {
    enum class End {
      kMeasured,
      kFailed,   // the candidate did: `outcome`, `problem`
      kNoDevice  // it was not begun, or was ended for a reason outside of the candidate: `problem`
    };
    End end = End::kNoDevice;
    std::vector<double> microseconds;
    v1::TuneOutcome outcome = v1::TUNE_NOT_REACHED;
    std::string problem;
    std::chrono::microseconds took{0};     // of the device
    std::chrono::microseconds running{0};  // of that, once the kernel and its tensors were there
    std::uint32_t compute_mhz = 0;         // the device's clocks meanwhile; 0: unknown
    std::uint32_t memory_mhz = 0;
    std::optional<v1::LaunchEnergy> energy{};  // where that was to be measured
    std::string no_energy{};                   // why it cannot be
  };
  // Of a candidate's outputs with those of the reference.
  struct Compared {
    enum class End { kAgrees, kDiffers, kCandidateFailed, kReferenceFailed, kNoDevice };
    End end = End::kNoDevice;
    v1::TuneOutcome outcome = v1::TUNE_NOT_REACHED;  // of the one that failed
    std::string problem;
    std::string caution{};  // of those that agree: why that says little
  };

  virtual ~Bench() = default;

  // The device of the tuning's own, and those of the same model that measure as well.
  virtual std::vector<std::string> Devices() const = 0;

  // Whether one more may be compiled or ranked now. Then `Compile` or `Rank` follows.
  virtual bool MayCompile() = 0;
  // `done` is called once, on any thread, as Compile's.
  virtual void Rank(std::size_t candidate, std::move_only_function<void(Ranked)> done) = 0;
  // `done` is called once, on any thread.
  virtual void Compile(std::size_t candidate, std::move_only_function<void(Compiled)> done) = 0;

  // These wait, until the given time at most for their turn; Stop ends them sooner. `limit` is the kernel's: what it and its tensors take to be
  // loaded does not count.
  // `device`: 0, the tuning's own, or another; of different ones at one time, once the own has measured something.
  virtual Measured Measure(std::size_t candidate, unsigned samples, std::chrono::milliseconds limit, cache::SteadyTime until, std::size_t device) = 0;
  // Of a candidate that has been measured: `energy`, or `no_energy`, and no times.
  virtual Measured MeasureEnergy(std::size_t candidate, std::chrono::milliseconds limit, cache::SteadyTime until) = 0;
  virtual Compared Compare(std::size_t candidate, std::size_t reference, std::chrono::milliseconds limit, cache::SteadyTime until) = 0;

  // Ends compiles, and what runs on the device. Any thread.
  virtual void Stop() = 0;
};

}  // namespace kiln::server
