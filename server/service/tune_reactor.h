// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/mutex.h"
#include "kiln/v1/tune.pb.h"
#include "server/access/gate.h"
#include "server/door/message_room.h"
#include "server/tune/tune_flow.h"

namespace kiln::server {

// Tune: reads the start, the candidates and the tensors, then writes how far it is and at last the record; never both at one time. A client that
// reads slowly gets the latest news and misses those before. Reading ends if it takes too long. Deletes itself in OnDone.
class TuneReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `confirm` is asked at each message that comes, and before the record goes.
  TuneReactor(grpc::CallbackServerContext& context, TuneFlow& flow, std::size_t message_bytes, Caller caller, Confirmation confirm, MessageRoom* room,
              int connection);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // What an alarm sees, which may outlive the reactor.
  struct Watched {
    cache::Mutex mutex;
    TuneReactor* reactor KILN_GUARDED_BY(mutex);  // null: it is gone
  };
  void Expire();
  bool StopReading();
  std::shared_ptr<TuneFlow::Call> Call();
  void Read();
  void EndReading(const Failure& failure);
  std::optional<Failure> Take();
  grpc::Status Refuse(const Failure& failure);
  void AllRead();
  void Tell(const v1::TuneProgress& progress);
  void Answer(TuneFlow::Told told);
  void Advance();

  grpc::CallbackServerContext& context_;
  TuneFlow& flow_;
  const std::size_t message_bytes_;  // that one may have
  Caller caller_;
  const Confirmation confirm_;
  MessageRoom::Waiter waiter_;
  grpc::ByteBuffer reading_;
  v1::TuneRequest request_;
  cache::Mutex mutex_;
  bool reads_ KILN_GUARDED_BY(mutex_) = true;
  std::shared_ptr<TuneFlow::Call> call_ KILN_GUARDED_BY(mutex_);  // which OnCancel reads on another thread
  std::optional<grpc::ByteBuffer> next_ KILN_GUARDED_BY(mutex_);
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool busy_ KILN_GUARDED_BY(mutex_) = false;  // a write is under way, or the call has ended
  std::optional<grpc::Status> end_ KILN_GUARDED_BY(mutex_);
  const std::shared_ptr<Watched> watched_;
  grpc::Alarm alarm_;
};

}  // namespace kiln::server
