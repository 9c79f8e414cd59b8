// SPDX-License-Identifier: Apache-2.0
#include "server/service/health.h"

#include <optional>
#include <string>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>

#include "cache/mutex.h"
#include "server/door/refused_call.h"
#include "server/reply/status_map.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

// HealthCheckResponse.ServingStatus.
enum class Serving : char { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// HealthCheckRequest.service, its only field (1, a string); nothing where the bytes are no such message.
std::optional<std::string> ServiceIn(const grpc::ByteBuffer& request) {
  const std::string bytes = ToString(request);
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  using google::protobuf::internal::WireFormatLite;
  std::string service;
  while (const std::uint32_t tag = in.ReadTag()) {
    std::uint32_t size = 0;
    const bool name = tag == WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
    const bool read = name ? in.ReadVarint32(&size) && in.ReadString(&service, static_cast<int>(size)) : WireFormatLite::SkipField(&in, tag);
    if (!read) return std::nullopt;
  }
  return in.ConsumedEntireMessage() ? std::optional(service) : std::nullopt;
}

bool IsOurs(std::string_view service) { return service.empty() || service == "kiln.v1.Kiln"; }

// HealthCheckResponse.status, field 1.
grpc::ByteBuffer Response(Serving serving) {
  const std::string bytes = {'\x08', static_cast<char>(serving)};
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

Failure NoRequest() { return {.kind = Failure::Kind::kMalformed, .message = "the request is no grpc.health.v1.HealthCheckRequest"}; }

class Watching final : public Sender, public HealthState::Watcher {
 public:
  // `ours`: else the service is none that will ever be.
  Watching(ArrivingCall& call, HealthState& state, bool ours) : Sender(call), state_(state), ours_(ours) { state.Add(*this); }

  void Tell(bool serving) override {
    cache::MutexLock lock(mutex_);
    next_ = !ours_ ? Serving::kServiceUnknown : serving ? Serving::kServing : Serving::kNotServing;
    Send();
  }

 private:
  void OnWriteDone(bool ok) override {
    cache::MutexLock lock(mutex_);
    busy_ = ended_ || !ok;
    Send();
  }
  void OnCancel() override {
    state_.Remove(*this);
    {
      cache::MutexLock lock(mutex_);
      busy_ = ended_ = true;
    }
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  void Send() KILN_REQUIRES(mutex_) {
    if (busy_ || !next_ || next_ == told_) return;
    busy_ = true;
    told_ = next_;
    writing_ = Response(*next_);
    StartWrite(&writing_);
  }

  HealthState& state_;
  const bool ours_;
  cache::Mutex mutex_;
  std::optional<Serving> next_ KILN_GUARDED_BY(mutex_);
  std::optional<Serving> told_ KILN_GUARDED_BY(mutex_);
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool busy_ KILN_GUARDED_BY(mutex_) = false;
  bool ended_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace

void HealthState::Set(bool serving) {
  cache::MutexLock lock(mutex_);
  serving_ = serving;
  for (Watcher* watcher : watchers_) watcher->Tell(serving);
}

bool HealthState::serving() const {
  cache::MutexLock lock(mutex_);
  return serving_;
}

void HealthState::Add(Watcher& watcher) {
  cache::MutexLock lock(mutex_);
  watchers_.insert(&watcher);
  watcher.Tell(serving_);
}

void HealthState::Remove(Watcher& watcher) {
  cache::MutexLock lock(mutex_);
  watchers_.erase(&watcher);
}

HealthService::HealthService(const Doorway& doorway, HealthState& state) : doorway_(doorway), state_(state) {
  using grpc::internal::RpcMethod;
  using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
  AddMethod(new grpc::internal::RpcServiceMethod("/grpc.health.v1.Health/Check", RpcMethod::BIDI_STREAMING, nullptr));
  AddMethod(new grpc::internal::RpcServiceMethod("/grpc.health.v1.Health/Watch", RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(0, new Handler([this](grpc::CallbackServerContext* context) { return Begin(*context, false); }));
  MarkMethodRawCallback(1, new Handler([this](grpc::CallbackServerContext* context) { return Begin(*context, true); }));
}

HealthService::Exchange* HealthService::Begin(grpc::CallbackServerContext& context, bool watch) {
  auto caller = doorway_.Identify(context);
  if (!caller) return new RefusedExchange<grpc::ByteBuffer, grpc::ByteBuffer>(Refuse(context, caller.error()));
  return new ArrivingCall(
      context, doorway_.room(), doorway_.ConnectionOf(context), caller->tenant,
      [this, watch](ArrivingCall& call, const grpc::ByteBuffer& request) { watch ? Watch(call, request) : Check(call, request); });
}

void HealthService::Check(ArrivingCall& call, const grpc::ByteBuffer& request) {
  const auto service = ServiceIn(request);
  if (!service) return call.Answer(Refuse(call.context(), NoRequest()));
  if (!IsOurs(*service)) return call.Answer({grpc::StatusCode::NOT_FOUND, "this kilnd has no such service"});
  call.response() = Response(state_.serving() ? Serving::kServing : Serving::kNotServing);
  call.Answer(grpc::Status::OK);
}

void HealthService::Watch(ArrivingCall& call, const grpc::ByteBuffer& request) {
  const auto service = ServiceIn(request);
  if (!service) return call.Answer(Refuse(call.context(), NoRequest()));
  call.SendBy(*new Watching(call, state_, IsOurs(*service)));
}

}  // namespace kiln::server
