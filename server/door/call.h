// SPDX-License-Identifier: Apache-2.0
//
// The call that a handler answers: one request, and one reply or a stream of messages. A handler need not know how the request arrives:
//
//   WholeCall      gRPC calls the handler once it has the message. Until then kilnd cannot tell who holds how much memory, but a hit is
//                  answered sooner than by an ArrivingCall.
//   ArrivingCall   begins at the headers (arriving_call.h).
//
// A handler runs before its call can end; what outlives it answers exactly once, and the call may be gone afterwards.
#pragma once

#include <functional>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/mutex.h"

namespace kiln::server {

// Sets what to do when the client goes away. Called on any thread.
class CancelHook {
 public:
  // Called at once if the client has already gone.
  void Set(std::function<void()> then) {
    {
      cache::MutexLock lock(mutex_);
      if (!cancelled_) then_ = std::exchange(then, nullptr);
    }
    if (then) then();
  }
  void Cancel() {
    std::function<void()> then;
    {
      cache::MutexLock lock(mutex_);
      cancelled_ = true;
      then = std::exchange(then_, nullptr);
    }
    if (then) then();
  }

 private:
  cache::Mutex mutex_;
  bool cancelled_ KILN_GUARDED_BY(mutex_) = false;
  std::function<void()> then_ KILN_GUARDED_BY(mutex_);
};

// A unary call.
class Call {
 public:
  virtual grpc::CallbackServerContext& context() = 0;
  virtual grpc::ByteBuffer& response() = 0;  // what goes out with the status OK
  virtual void Answer(const grpc::Status& status) = 0;
  virtual void WhenCancelled(std::function<void()> then) = 0;

 protected:
  ~Call() = default;
};

// Deletes itself in OnDone.
class WholeCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  WholeCall(grpc::CallbackServerContext& context, grpc::ByteBuffer& response) : context_(context), response_(response) {}

  grpc::CallbackServerContext& context() override { return context_; }
  grpc::ByteBuffer& response() override { return response_; }
  void Answer(const grpc::Status& status) override { Finish(status); }
  void WhenCancelled(std::function<void()> then) override { hook_.Set(std::move(then)); }

 private:
  void OnCancel() override { hook_.Cancel(); }
  void OnDone() override { delete this; }

  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  CancelHook hook_;
};

}  // namespace kiln::server
