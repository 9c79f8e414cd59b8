// SPDX-License-Identifier: Apache-2.0
//
// EnsureKernels: a manifest of requests × targets, of which afterwards every one is kept.
//
// First everything is looked up; what is not known is then compiled, a few more at a time than there are workers, so that a
// manifest never fills the queue. It goes in the order of the requests' digests: as good as random, so that the first tenth is a
// fair sample of the rest, for the estimate of what remains, and the same for everybody, so that the ranks of a job
// who send the same manifest share every compile. Before each the caller's rights are asked for again: a token may be revoked meanwhile.
//
// Threads. The manifest is expanded on the executor. Items end on the flow's threads. The one who ends an item starts the next; the
// one after whom nothing runs finishes the call. `running_` counts items, the expansion, the pause after a full queue, and that for
// a client who reads slowly: nobody touches the object after it has given up its count.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "kiln/v1/service.pb.h"
#include "server/arriving_call.h"
#include "server/compile_flow.h"
#include "server/executor.h"
#include "server/gate.h"
#include "server/manifest.h"
#include "server/quotas.h"
#include "server/request_limits.h"
#include "server/tenant_budget.h"
#include "server/work_estimate.h"

namespace kiln::server {

class EnsureReactor final : public Sender {
 public:
  struct Parts {
    CompileFlow& flow;
    Executor& executor;
    unsigned workers;
    const RequestLimits& limits;
    const Gate& gate;
    bool accepted;  // as CompileFlow::Request's
    std::shared_ptr<CallNotes> notes;
  };

  EnsureReactor(ArrivingCall& call, const Parts& parts, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted, v1::EnsureRequest request);

 private:
  using Clock = std::chrono::steady_clock;
  struct Item {
    std::shared_ptr<CompileFlow::Call> call;  // while it runs
    bool running = false;
    Clock::time_point began{};
    WorkEstimate::Part part = 0;  // of what must be compiled
  };

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

  void ExpandSoon();
  void Expand();
  void Continue();
  void StartSome();
  void Start(std::size_t index, bool lookup);
  void Ended(std::size_t index, bool lookup, Outcome outcome);
  void Note(std::size_t index, const Outcome& outcome);
  bool NoteProblem(std::size_t index);
  bool MayGoOn();
  void Pause(std::chrono::milliseconds time);
  void Advance(std::unique_lock<std::mutex> lock);

  const Parts parts_;
  const Caller caller_;
  const TenantBudget::Charge memory_;
  std::optional<Quotas::InFlight> counted_;  // for all of its items, until the client may call again
  Manifest manifest_;
  const std::size_t window_;
  const Clock::time_point began_ = Clock::now();

  std::mutex mutex_;
  std::vector<Item> items_;  // one for each of the manifest's
  std::vector<std::size_t> todo_;  // of this phase; `next_` is the next one
  std::vector<std::size_t> misses_;
  std::size_t next_ = 0;
  std::size_t running_ = 1;
  bool looking_ = true;  // the first phase
  bool paused_ = false;     // the queue is full
  bool throttled_ = false;  // the client reads slowly
  std::unique_ptr<grpc::Alarm> alarm_;  // another for each pause: one may be set while the call back of the last still runs
  WorkEstimate estimate_;  // of what must be compiled, by the bytes of the requests
  std::optional<Failure> failure_;  // ends the call before its items

  v1::EnsureProgress progress_;  // to be written next
  std::size_t unwritten_bytes_ = 0;  // of its kernels
  grpc::ByteBuffer writing_;
  bool news_ = false;
  bool busy_ = false;
  bool broken_ = false;
};

}  // namespace kiln::server
