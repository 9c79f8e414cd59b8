// SPDX-License-Identifier: Apache-2.0
//
// Rank: what the planner expects each of several programs to take. Each is a compile that ends before code is made (Explain.estimate), so that it
// goes through the same checks, queue and workers as others, a few more at a time than there are workers.
//
// Threads. Items end on the flow's threads. The one who ends an item starts the next; the one after whom nothing runs finishes the call.
// `running_` counts items, the pause after a full queue, that for a client who reads slowly, and the constructor: nobody touches the object
// after it has given up its count.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/mutex.h"
#include "kiln/v1/service.pb.h"
#include "server/access/gate.h"
#include "server/access/quotas.h"
#include "server/config/request_limits.h"
#include "server/door/arriving_call.h"
#include "server/flow/compile_flow.h"
#include "server/queue/executor.h"
#include "server/queue/tenant_budget.h"

namespace kiln::server {

class RankReactor final : public Sender {
 public:
  struct Parts {
    CompileFlow& flow;
    Executor& executor;
    unsigned workers;
    const RequestLimits& limits;
    const Gate& gate;
    bool accepted;  // as CompileFlow::Request's
  };

  // `memory`: of the request.
  RankReactor(ArrivingCall& call, const Parts& parts, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted, v1::RankRequest request);

 private:
  struct Item {
    std::shared_ptr<CompileFlow::Call> call;  // while it runs
    bool running = false;
  };

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

  void Continue();
  void StartSome();
  void Start(std::size_t index);
  void Ended(std::size_t index, Outcome outcome);
  void Note(std::size_t index, const Outcome& outcome) KILN_REQUIRES(mutex_);
  bool MayGoOn();
  void Pause(std::chrono::milliseconds time) KILN_REQUIRES(mutex_);
  std::optional<grpc::Status> Advance() KILN_REQUIRES(mutex_);
  void End(const std::optional<grpc::Status>& status);

  const Parts parts_;
  const Caller caller_;
  const TenantBudget::Charge memory_;
  std::optional<Quotas::InFlight> counted_;  // for all of its items, until the client may call again
  const v1::RankRequest request_;
  const std::size_t window_;

  cache::Mutex mutex_;
  std::vector<Item> items_ KILN_GUARDED_BY(mutex_);        // one for each candidate
  std::vector<std::size_t> todo_ KILN_GUARDED_BY(mutex_);  // `next_` is the next one; behind them those that found the queue full
  std::size_t next_ KILN_GUARDED_BY(mutex_) = 0;
  std::size_t running_ KILN_GUARDED_BY(mutex_) = 1;
  bool paused_ KILN_GUARDED_BY(mutex_) = false;     // the queue is full
  bool throttled_ KILN_GUARDED_BY(mutex_) = false;  // the client reads slowly
  std::unique_ptr<grpc::Alarm> alarm_ KILN_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ KILN_GUARDED_BY(mutex_);  // ends the call before its items

  v1::RankProgress progress_ KILN_GUARDED_BY(mutex_);  // to be written next
  std::size_t unwritten_bytes_ KILN_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool busy_ KILN_GUARDED_BY(mutex_) = false;
  bool broken_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
