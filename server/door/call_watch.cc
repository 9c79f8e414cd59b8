// SPDX-License-Identifier: Apache-2.0
#include "server/door/call_watch.h"

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/server_interceptor.h>

#include "kiln/v1/service.pb.h"
#include "server/door/refused_call.h"
#include "server/reply/status_map.h"
#include "server/telemetry/trace.h"

namespace kiln::server {
namespace {

constexpr std::string_view kService = "/kiln.v1.Kiln/";

class CallContext final : public grpc::CallbackServerContext {
 public:
  explicit CallContext(const cache::Clock& given) : clock(given) {
    record.number = NextRequestNumber();
    record.arrived = clock.WallNow();
    record.began = clock.SteadyNow();
  }

  const cache::Clock& clock;
  CallRecord record;
  std::shared_ptr<CallNotes> notes;
  bool accepted = false;
};

class ContextAllocator final : public grpc::ContextAllocator {
 public:
  ContextAllocator(Journal& journal, AcceptedCalls& accepted, const cache::Clock& clock) : journal_(journal), accepted_(accepted), clock_(clock) {}

  grpc::CallbackServerContext* NewCallbackServerContext() override { return new CallContext(clock_); }

  void Release(grpc::CallbackServerContext* released) override {
    // For a method that nobody serves, gRPC made the context itself, but gives it back here all the same.
    const std::unique_ptr<CallContext> context(dynamic_cast<CallContext*>(released));
    if (!context) return;
    if (context->accepted) accepted_.Leave();
    if (context->record.method.empty()) return;
    const auto& metadata = context->client_metadata();
    if (const auto sent = metadata.find("traceparent"); sent != metadata.end()) {
      if (const auto trace = ParseTraceParent({sent->second.data(), sent->second.size()})) context->record.trace = *trace;
    }
    if (context->notes) context->notes->MoveInto(context->record);
    journal_.Add(std::move(context->record));
  }

 private:
  Journal& journal_;
  AcceptedCalls& accepted_;
  const cache::Clock& clock_;
};

class CallInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit CallInterceptor(CallContext& call) : call_(call) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(Point::PRE_SEND_MESSAGE)) {
      if (const grpc::ByteBuffer* sent = batch->GetSerializedSendMessage()) call_.record.bytes_out += sent->Length();
    }
    if (batch->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      call_.record.code = batch->GetSendStatus().error_code();
      call_.record.took = std::chrono::duration_cast<std::chrono::microseconds>(call_.clock.SteadyNow() - call_.record.began);
    }
    batch->Proceed();
  }

 private:
  CallContext& call_;
};

class InterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit InterceptorFactory(AcceptedCalls& accepted) : accepted_(accepted) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method();
    if (!method.starts_with(kService)) return nullptr;
    auto* context = dynamic_cast<CallContext*>(info->server_context());
    if (context == nullptr) return nullptr;                   // a method that no callback handles
    context->record.method = method.substr(kService.size());  // the server's own string
    context->accepted = accepted_.Enter();
    return new CallInterceptor(*context);
  }

 private:
  AcceptedCalls& accepted_;
};

class UnservedMethods final : public grpc::CallbackGenericService {
 public:
  UnservedMethods(Journal& journal, const cache::Clock& clock) : journal_(journal), clock_(clock) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    const Failure refusal{.kind = Failure::Kind::kUnsupported, .message = "this kilnd serves no such method; is the client of a later version?"};
    const grpc::Status status = ToStatus(refusal);
    CallRecord record;
    record.method = "other";
    record.number = NextRequestNumber();
    record.arrived = clock_.WallNow();
    record.began = clock_.SteadyNow();
    record.tenant.clear();
    record.code = status.error_code();
    record.reason = ReasonOf(refusal.kind);
    journal_.Add(std::move(record));
    return new RefusedExchange<grpc::ByteBuffer, grpc::ByteBuffer>(status);
  }

 private:
  Journal& journal_;
  const cache::Clock& clock_;
};

// The field `number` if the stream is at it.
bool ReadField(google::protobuf::io::CodedInputStream& in, int number, std::string& value) {
  std::uint32_t size = 0;
  return in.ReadTag() == static_cast<std::uint32_t>(number << 3 | 2) && in.ReadVarint32(&size) && in.ReadString(&value, static_cast<int>(size));
}

}  // namespace

std::unique_ptr<grpc::CallbackGenericService> WatchCalls(grpc::ServerBuilder& builder, Journal& journal, AcceptedCalls& accepted,
                                                         const cache::Clock& clock) {
  builder.SetContextAllocator(std::make_unique<ContextAllocator>(journal, accepted, clock));
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<InterceptorFactory>(accepted));
  builder.experimental().SetInterceptorCreators(std::move(factories));
  auto unserved = std::make_unique<UnservedMethods>(journal, clock);
  builder.RegisterCallbackGenericService(unserved.get());
  return unserved;
}

CallRecord& RecordOf(grpc::CallbackServerContext& context) { return static_cast<CallContext&>(context).record; }

std::shared_ptr<CallNotes> NotesOf(grpc::CallbackServerContext& context) {
  auto& call = static_cast<CallContext&>(context);
  if (!call.notes) call.notes = std::make_shared<CallNotes>(call.clock);
  return call.notes;
}

void NoteCaller(grpc::CallbackServerContext& context, const std::expected<Caller, Failure>& caller) {
  CallRecord& record = RecordOf(context);
  if (!caller) {
    record.tenant.clear();
    record.reason = ReasonOf(caller.error().kind);
    return;
  }
  record.tenant = caller->tenant;
  record.caller = caller->name;
}

std::string RequestIdOf(grpc::CallbackServerContext& context) { return RequestIdText(RecordOf(context).number); }

bool WasAccepted(grpc::CallbackServerContext& context) { return static_cast<CallContext&>(context).accepted; }

void NoteReply(grpc::CallbackServerContext& context, const Reply& reply) {
  CallRecord& record = RecordOf(context);
  record.origin = reply.origin;
  // A serialized CompileReply begins with its key and then the artifact, which begins with its target.
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(reply.kept.data()), static_cast<int>(reply.kept.size()));
  std::string key;
  if (!ReadField(in, v1::CompileReply::kKeyFieldNumber, key)) return;
  record.key_prefix = HexOf(reinterpret_cast<const std::uint8_t*>(key.data()), std::min<std::size_t>(key.size(), 8));
  std::uint32_t size = 0;
  if (in.ReadTag() != (v1::CompileReply::kArtifactFieldNumber << 3 | 2) || !in.ReadVarint32(&size)) return;
  std::string target;
  if (ReadField(in, v1::Artifact::kTargetFieldNumber, target)) record.target = std::move(target);
}

void NoteOutcome(grpc::CallbackServerContext& context, const Outcome& outcome) {
  if (outcome) return NoteReply(context, *outcome);
  RecordOf(context).reason = ReasonOf(outcome.error().kind);
}

}  // namespace kiln::server
