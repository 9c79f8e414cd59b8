// SPDX-License-Identifier: Apache-2.0
//
// One Run from its first message to its result: the numbered steps.
//
// Threads. Begin, Add and Run are called by one thread at a time (gRPC's, for one call) and return at once. The steps run on the
// executor, on the compile's threads and on the device's slot thread, one after the other. `done` is called exactly once, on any of
// these threads or on the one that cancels; it should only hand over.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/clock.h"
#include "kiln/v1/run.pb.h"
#include "server/access/caller.h"
#include "server/access/quotas.h"
#include "server/flow/compile_flow.h"
#include "server/flow/run_memory.h"
#include "server/pool/device_pool.h"
#include "server/queue/executor.h"
#include "server/reply/failure.h"
#include "server/telemetry/call_record.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

class RunFlow {
 public:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;  // of data, in one message

  struct Options {
    std::uint64_t call_bytes = std::uint64_t{256} << 20;  // of the tensors of one call, outputs included
    std::uint64_t total_bytes = std::uint64_t{1} << 30;   // of all calls under way
    std::size_t calls = 256;                              // under way
    unsigned arguments = 256;                             // of a run
    unsigned repeats = 10'000;                            // of its launch, to time it
    std::chrono::milliseconds limit{60'000};              // of a run in its worker
    std::chrono::milliseconds transfer{60'000};           // of the tensors from the client, and of the outputs to it
  };
  struct Parts {
    CompileFlow& compile;
    DevicePool& devices;
    Executor& executor;
    Telemetry& telemetry;
    Quotas& quotas;
    Metrics& metrics;
    const cache::Clock& clock;
  };

  // What a run gave: the result, and where the outputs' bytes are.
  struct Output {
    struct Extent {
      std::uint64_t position = 0, bytes = 0;
    };
    v1::RunResult result;
    std::shared_ptr<RunMemory> memory;
    std::vector<Extent> extents;
  };
  using Ran = std::expected<Output, Failure>;
  using Done = std::move_only_function<void(Ran)>;
  class Call;

  RunFlow(Options options, Parts parts);

  std::chrono::milliseconds transfer() const { return options_.transfer; }

  // Checks what can be checked at once, and takes memory for the tensors. `accepted` as CompileFlow::Request's.
  std::expected<std::shared_ptr<Call>, Failure> Begin(Caller caller, std::string request_id, std::shared_ptr<CallNotes> notes, bool accepted,
                                                      v1::RunStart start);

  // The next bytes of the tensors.
  std::optional<Failure> Add(Call& call, std::string_view data);

  // All data is there.
  void Run(const std::shared_ptr<Call>& call, Done done);

  // May be called at any time; `done`, where Run was called, is then called with kCancelled unless it was before. A run under way is
  // killed.
  void Cancel(const std::shared_ptr<Call>& call);

  std::size_t calls() const { return calls_; }

  // Of the tensors of all that runs on this host's devices.
  RunBudget& budget() { return budget_; }

 private:
  std::optional<Failure> Check(const v1::RunStart& start) const;
  void FindDevice(const std::shared_ptr<Call>& call);
  void FindKernel(const std::shared_ptr<Call>& call);
  void FindKey(Call& call, std::function<void(Outcome)> next);
  void Launch(const std::shared_ptr<Call>& call, const Reply& kernel);
  void Land(const std::shared_ptr<Call>& call, DeviceOutcome outcome);
  Ran Judge(Call& call, DeviceOutcome& outcome);
  Ran Take(Call& call, DeviceOutcome& outcome);
  Ran Broken(Call& call, const DeviceOutcome& outcome);
  std::string TooLong(const Call& call, std::string_view doing) const;
  void End(const std::shared_ptr<Call>& call, Ran ran);
  void Tell(const std::shared_ptr<Call>& call, Ran ran);

  const Options options_;
  const Parts parts_;
  RunBudget budget_;
  std::atomic<std::size_t> calls_ = 0;
};

}  // namespace kiln::server
