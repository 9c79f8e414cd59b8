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
#include "server/door/arriving_call.h"
#include "server/door/message_room.h"
#include "server/service/news_stream.h"
#include "server/tune/tune_flow.h"

namespace kiln::server {

// Tune: reads the start, the candidates and the tensors, then writes how far it is and at last the record; never both at one time. Reading ends if
// it takes too long. Deletes itself in OnDone.
class TuneReactor final : public NewsStream<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  // `confirm` is asked at each message that comes, and before the record goes.
  TuneReactor(grpc::CallbackServerContext& context, TuneFlow& flow, std::size_t message_bytes, Caller caller, Confirmation confirm, MessageRoom* room,
              int connection);

 private:
  void OnReadDone(bool ok) override;
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
  void AllRead();

  TuneFlow& flow_;
  const std::size_t message_bytes_;  // that one may have
  Caller caller_;
  MessageRoom::Waiter waiter_;
  grpc::ByteBuffer reading_;
  v1::TuneRequest request_;
  cache::Mutex mutex_;
  bool reads_ KILN_GUARDED_BY(mutex_) = true;
  std::shared_ptr<TuneFlow::Call> call_ KILN_GUARDED_BY(mutex_);  // which OnCancel reads on another thread
  const std::shared_ptr<Watched> watched_;
  grpc::Alarm alarm_;
};

// Watch: how far a tuning is that goes on behind its callers, and its record. Deletes itself in OnDone.
class WatchReactor final : public NewsStream<Sender> {
 public:
  WatchReactor(ArrivingCall& call, TuneFlow& flow, Caller caller, Confirmation confirm, Quotas::InFlight counted, const cache::Digest& key);

 private:
  void OnCancel() override { flow_.Cancel(call_); }
  void OnDone() override { delete this; }

  TuneFlow& flow_;
  std::shared_ptr<TuneFlow::Call> call_;
};

}  // namespace kiln::server
