// SPDX-License-Identifier: Apache-2.0
#include "server/door/arriving_call.h"

#include <utility>

#include "cache/mutex.h"
#include "server/door/call_watch.h"
#include "server/door/refused_call.h"
#include "server/reply/status_map.h"

namespace kiln::server {
namespace {

Failure NoRequest() { return {.kind = Failure::Kind::kMalformed, .message = "the call ended before its request had come"}; }

}  // namespace

void Sender::StartWrite(const grpc::ByteBuffer* message) { stream_.StartWrite(message); }
void Sender::Finish(const grpc::Status& status) { stream_.Finish(status); }

ArrivingCall::ArrivingCall(grpc::CallbackServerContext& context, MessageRoom* room, int connection, std::string tenant, Handler handler)
    : context_(context), handler_(std::move(handler)), waiter_(room, connection, std::move(tenant)) {
  waiter_.Wait([this](const Failure& failure) { Finish(Refuse(context_, failure)); });
  StartRead(&request_);
}

void ArrivingCall::OnReadDone(bool ok) {
  if (!waiter_.Came()) return;
  if (!ok) return Finish(context_.IsCancelled() ? grpc::Status::CANCELLED : Refuse(context_, NoRequest()));
  handler_(*this, request_);
}

void ArrivingCall::Answer(const grpc::Status& status) {
  if (!status.ok()) return Finish(status);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), status);
}

void ArrivingCall::SendBy(Sender& sender) {
  std::optional<bool> written;
  {
    cache::MutexLock lock(mutex_);
    sender_ = &sender;
    written = std::exchange(early_write_, std::nullopt);
  }
  if (written) sender.OnWriteDone(*written);
  hook_.Set([&sender] { sender.OnCancel(); });
}

void ArrivingCall::OnWriteDone(bool ok) {
  Sender* sender = nullptr;
  {
    cache::MutexLock lock(mutex_);
    sender = sender_;
    if (sender == nullptr) early_write_ = ok;
  }
  if (sender != nullptr) sender->OnWriteDone(ok);
}

void ArrivingCall::OnDone() {
  Sender* sender = nullptr;
  {
    cache::MutexLock lock(mutex_);
    sender = sender_;
  }
  if (sender != nullptr) sender->OnDone();
  delete this;
}

}  // namespace kiln::server
