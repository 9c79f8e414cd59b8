// SPDX-License-Identifier: Apache-2.0
//
// A call that begins at its headers. It is known who calls before a byte of the message is read, and what gRPC holds of the message until it
// is whole is counted as that tenant's (message_room.h). To gRPC it is a stream both ways, whatever its method is.
//
// Threads. gRPC's. The handler runs in OnReadDone, before which nothing but a refusal of the room's, and after which OnDone can come.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "cache/mutex.h"
#include "server/door/call.h"
#include "server/door/message_room.h"
#include "server/reply/failure.h"

namespace kiln::server {

class ArrivingCall;

// What sends the messages of a stream: an object of its own, which OnDone ends. One write is under way at a time.
class Sender {
 public:
  explicit Sender(ArrivingCall& call) : stream_(call) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  virtual void OnWriteDone(bool ok) = 0;
  virtual void OnCancel() {}
  virtual void OnDone() = 0;

 protected:
  ~Sender() = default;
  void StartWrite(const grpc::ByteBuffer* message);
  void Finish(const grpc::Status& status);

 private:
  ArrivingCall& stream_;
};

// Deletes itself in OnDone.
class ArrivingCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, public Call {
 public:
  using Handler = std::function<void(ArrivingCall& call, grpc::ByteBuffer& request)>;

  // Without a room (null) nothing is counted.
  ArrivingCall(grpc::CallbackServerContext& context, MessageRoom* room, int connection, std::string tenant, Handler handler);

  grpc::CallbackServerContext& context() override { return context_; }
  grpc::ByteBuffer& response() override { return response_; }
  void Answer(const grpc::Status& status) override;
  void WhenCancelled(std::function<void()> then) override { hook_.Set(std::move(then)); }

  // Starts a stream's messages: `sender` sends them, and is told what happened before it was known. Call it last in the handler.
  void SendBy(Sender& sender);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { hook_.Cancel(); }
  void OnDone() override;

  grpc::CallbackServerContext& context_;
  const Handler handler_;
  MessageRoom::Waiter waiter_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  CancelHook hook_;
  cache::Mutex mutex_;
  Sender* sender_ KILN_GUARDED_BY(mutex_) = nullptr;
  std::optional<bool> early_write_ KILN_GUARDED_BY(mutex_);  // a write was done before the sender was known
};

}  // namespace kiln::server
