// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/mutex.h"
#include "kiln/v1/run.pb.h"
#include "server/access/gate.h"
#include "server/door/message_room.h"
#include "server/flow/run_flow.h"

namespace kiln::server {

// Run: reads the start and the tensors, then writes the result and the outputs; never both at one time. Either ends if it takes too long,
// so that a client that neither sends nor reads cannot make the call hold its resources. Deletes itself in OnDone.
class RunReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `confirm` is asked at each message that comes or goes.
  RunReactor(grpc::CallbackServerContext& context, RunFlow& flow, std::size_t message_bytes, Caller caller, Confirmation confirm, MessageRoom* room,
             int connection);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  enum class Phase { kReading, kRunning, kWriting, kEnded };
  // What an alarm sees, which may outlive the reactor.
  struct Watched {
    cache::Mutex mutex;
    RunReactor* reactor KILN_GUARDED_BY(mutex);  // null: it is gone
  };
  void Watch(Phase phase);
  void Expire(Phase watched);
  bool Advance(Phase from, Phase to);
  std::shared_ptr<RunFlow::Call> Call();

  void Read();
  void EndReading(const Failure& failure);
  std::optional<Failure> Take();
  grpc::Status Refuse(const Failure& failure);
  void AllRead();
  void Answer(RunFlow::Ran ran);
  void Next();
  void Send();

  grpc::CallbackServerContext& context_;
  RunFlow& flow_;
  const std::size_t message_bytes_;  // that one may have
  Caller caller_;
  const Confirmation confirm_;
  MessageRoom::Waiter waiter_;
  grpc::ByteBuffer reading_;
  grpc::ByteBuffer writing_;
  v1::RunRequest request_;
  v1::RunReply reply_;
  RunFlow::Output output_;
  std::size_t extent_ = 0;  // of which bytes are sent next
  std::uint64_t sent_ = 0;  // of it
  cache::Mutex mutex_;
  Phase phase_ KILN_GUARDED_BY(mutex_) = Phase::kReading;
  std::shared_ptr<RunFlow::Call> call_ KILN_GUARDED_BY(mutex_);  // which OnCancel reads on another thread
  const std::shared_ptr<Watched> watched_;
  std::unique_ptr<grpc::Alarm> alarm_;  // of this phase
};

}  // namespace kiln::server
