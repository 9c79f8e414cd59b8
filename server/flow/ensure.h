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
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "kiln/v1/service.pb.h"
#include "server/access/gate.h"
#include "server/access/quotas.h"
#include "server/config/request_limits.h"
#include "server/door/arriving_call.h"
#include "server/flow/compile_flow.h"
#include "server/queue/executor.h"
#include "server/queue/tenant_budget.h"
#include "server/queue/work_estimate.h"
#include "server/wire/manifest.h"

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
    const cache::Clock& clock;
  };

  EnsureReactor(ArrivingCall& call, const Parts& parts, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted,
                v1::EnsureRequest request);

 private:
  struct Item {
    std::shared_ptr<CompileFlow::Call> call;  // while it runs
    bool running = false;
    cache::SteadyTime began{};
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
  void Note(std::size_t index, const Outcome& outcome) KILN_REQUIRES(mutex_);
  bool NoteProblem(std::size_t index) KILN_REQUIRES(mutex_);
  bool MayGoOn();
  void Pause(std::chrono::milliseconds time) KILN_REQUIRES(mutex_);
  std::optional<grpc::Status> Advance() KILN_REQUIRES(mutex_);
  void End(const std::optional<grpc::Status>& status);

  const Parts parts_;
  const Caller caller_;
  const TenantBudget::Charge memory_;
  std::optional<Quotas::InFlight> counted_;  // for all of its items, until the client may call again
  Manifest manifest_;
  const std::size_t window_;
  const cache::SteadyTime began_ = parts_.clock.SteadyNow();

  cache::Mutex mutex_;
  std::vector<Item> items_ KILN_GUARDED_BY(mutex_);        // one for each of the manifest's
  std::vector<std::size_t> todo_ KILN_GUARDED_BY(mutex_);  // of this phase; `next_` is the next one
  std::vector<std::size_t> misses_ KILN_GUARDED_BY(mutex_);
  std::size_t next_ KILN_GUARDED_BY(mutex_) = 0;
  std::size_t running_ KILN_GUARDED_BY(mutex_) = 1;
  bool looking_ KILN_GUARDED_BY(mutex_) = true;     // the first phase
  bool paused_ KILN_GUARDED_BY(mutex_) = false;     // the queue is full
  bool throttled_ KILN_GUARDED_BY(mutex_) = false;  // the client reads slowly
  // Another for each pause: one may be set while the call back of the last still runs.
  std::unique_ptr<grpc::Alarm> alarm_ KILN_GUARDED_BY(mutex_);
  WorkEstimate estimate_ KILN_GUARDED_BY(mutex_);           // of what must be compiled, by the bytes of the requests
  std::optional<Failure> failure_ KILN_GUARDED_BY(mutex_);  // ends the call before its items

  v1::EnsureProgress progress_ KILN_GUARDED_BY(mutex_);      // to be written next
  std::size_t unwritten_bytes_ KILN_GUARDED_BY(mutex_) = 0;  // of its kernels
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool news_ KILN_GUARDED_BY(mutex_) = false;
  bool busy_ KILN_GUARDED_BY(mutex_) = false;
  bool broken_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
