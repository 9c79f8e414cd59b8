// SPDX-License-Identifier: Apache-2.0
//
// A call of many parts, each of which is a compile or a lookup: a manifest, a ranking. A few more run at a time than there are workers, so that no
// call fills the queue; one that finds it full is tried again after a pause. Before each the caller's rights are asked for again: a token may be
// revoked meanwhile. What has ended is written as soon as the client has read what was written before; nothing more is started for one that reads
// too slowly.
//
// Threads. Parts end on the flow's threads. Whoever ends one starts the next; the one after whom nothing runs finishes the call. `running_` counts
// parts, what the derived class prepares before the first (Continue gives that up), the pause after a full queue, and that for a client who reads
// slowly: nobody touches the object after it has given up its count.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/mutex.h"
#include "server/access/gate.h"
#include "server/access/quotas.h"
#include "server/config/request_limits.h"
#include "server/door/arriving_call.h"
#include "server/flow/compile_flow.h"
#include "server/queue/executor.h"
#include "server/queue/tenant_budget.h"

namespace kiln::server {

class PartsStream : public Sender {
 public:
  struct Parts {
    CompileFlow& flow;
    Executor& executor;
    unsigned workers;
    const RequestLimits& limits;
    const Gate& gate;
    bool accepted;  // as CompileFlow::Request's
  };

 protected:
  // `method`: as its scope's row names it. `memory`: of the request. One count is the derived class's, until it calls Continue.
  PartsStream(ArrivingCall& call, const Parts& parts, std::string_view method, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted);
  ~PartsStream() = default;

  // What is asked of the derived class. All but the first two under the mutex.
  virtual CompileFlow::Request RequestOf(std::size_t part) = 0;    // without `caller` and `done`
  virtual std::optional<Failure> ProblemOf(std::size_t part) = 0;  // why it is not begun
  virtual void Note(std::size_t part, const Outcome& outcome) KILN_REQUIRES(mutex_) = 0;
  virtual bool HasNews() const KILN_REQUIRES(mutex_) = 0;
  virtual grpc::ByteBuffer TakeNews() KILN_REQUIRES(mutex_) = 0;
  virtual std::size_t Window() const KILN_REQUIRES(mutex_) { return window_; }
  virtual bool NextRound() KILN_REQUIRES(mutex_) { return false; }  // whether it has set others to do, now that all have ended

  // Parts from 0 on, in the order in which they are begun.
  void KeepCount() KILN_REQUIRES(mutex_) { ++running_; }  // for what the derived class does beside the parts, until it calls Continue
  void SetTodo(std::size_t parts) KILN_REQUIRES(mutex_);
  void SetTodo(std::vector<std::size_t> todo) KILN_REQUIRES(mutex_);
  bool NothingLeft() const KILN_REQUIRES(mutex_) { return next_ == todo_.size(); }
  void AddUnwritten(std::size_t bytes) KILN_REQUIRES(mutex_) { unwritten_bytes_ += bytes; }
  void FailWith(Failure failure) KILN_REQUIRES(mutex_);  // ends the call before its parts
  bool failed() const KILN_REQUIRES(mutex_) { return failure_.has_value(); }

  // By a holder of a count: starts as many parts as allowed, then gives up the count.
  void Continue();

  const Parts parts_;
  const Caller caller_;
  cache::Mutex mutex_;

 private:
  struct Part {
    std::shared_ptr<CompileFlow::Call> call;  // while it runs
    bool running = false;
  };

  void OnWriteDone(bool ok) final;
  void OnCancel() final;

  void StartSome();
  void Start(std::size_t part);
  void Ended(std::size_t part, Outcome outcome);
  bool MayGoOn();
  void Pause(std::chrono::milliseconds time) KILN_REQUIRES(mutex_);
  std::optional<grpc::Status> Advance() KILN_REQUIRES(mutex_);
  void End(const std::optional<grpc::Status>& status);

  const std::string_view method_;
  const TenantBudget::Charge memory_;
  std::optional<Quotas::InFlight> counted_;  // for all of its parts, until the client may call again
  const std::size_t window_;

  std::vector<Part> all_ KILN_GUARDED_BY(mutex_);
  std::vector<std::size_t> todo_ KILN_GUARDED_BY(mutex_);  // `next_` is the next one; behind them those that found the queue full
  std::size_t next_ KILN_GUARDED_BY(mutex_) = 0;
  std::size_t running_ KILN_GUARDED_BY(mutex_) = 1;
  bool paused_ KILN_GUARDED_BY(mutex_) = false;     // the queue is full
  bool throttled_ KILN_GUARDED_BY(mutex_) = false;  // the client reads slowly
  // Another for each pause: one may be set while the call back of the last still runs.
  std::unique_ptr<grpc::Alarm> alarm_ KILN_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ KILN_GUARDED_BY(mutex_);
  std::size_t unwritten_bytes_ KILN_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool busy_ KILN_GUARDED_BY(mutex_) = false;
  bool broken_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
