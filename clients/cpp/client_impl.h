// SPDX-License-Identifier: Apache-2.0
//
// The inside of kiln::Client. Not part of its interface.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include "clients/cpp/client.h"
#include "clients/cpp/convert.h"
#include "clients/cpp/recorder.h"
#include "clients/cpp/trust.h"
#include "kiln/v1/service.grpc.pb.h"

namespace kiln {

struct CallTerms {
  std::string_view trace_parent = {};                                     // empty: the connection's
  std::chrono::milliseconds at_least = std::chrono::milliseconds::min();  // what the call may take though the connection's timeout is less
  std::function<bool()> again = {};                                       // whether it may be made again; empty: it may
};

struct Client::Impl {
  explicit Impl(ConnectOptions given) : options(std::move(given)), recorder(options.record), trust(options.address) {}

  ConnectOptions options;
  const Recorder recorder;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Kiln::Stub> stub;
  mutable Trust trust;

  // Makes a call. If kilnd refuses it for lack of memory or places, the call is made again at the time kilnd names, within the time given.
  std::expected<void, Error> Try(const std::function<grpc::Status(grpc::ClientContext&)>& call, const CallTerms& terms = {}) const;

  template <class Request, class Reply>
  std::expected<Reply, Error> Call(grpc::Status (v1::Kiln::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                                   const Request& request) const {
    Reply reply;
    auto called = Try([&](grpc::ClientContext& context) { return (stub.get()->*method)(&context, request, &reply); });
    if (!called) return std::unexpected(std::move(called.error()));
    return reply;
  }

  // A page of it, in the order of keys.
  std::expected<std::vector<v1::CacheEntry>, Error> List(const v1::CacheListRequest& request) const {
    std::vector<v1::CacheEntry> entries;
    auto listed = Try([&](grpc::ClientContext& context) {
      const auto reader = stub->CacheList(&context, request);
      entries.clear();
      for (v1::CacheEntry entry; reader->Read(&entry);) entries.push_back(std::move(entry));
      return reader->Finish();
    });
    if (!listed) return std::unexpected(std::move(listed.error()));
    if (!request.after().empty() && !entries.empty() && entries.front().key() <= request.after()) {
      return std::unexpected(
          Error{.code = ErrorCode::kUnsupported, .message = "this kilnd is older than its client and lists its first entries only"});
    }
    return entries;
  }

  Trust::AskDaemon AskDaemon() const {
    return [this](Trust::Ask how) {
      v1::CapabilitiesRequest request;
      request.set_at_once(how == Trust::Ask::kAtOnce);
      return Call(&v1::Kiln::Stub::Capabilities, request);
    };
  }

  // What is loaded later is made from exactly the bytes that were verified.
  std::expected<Compiled, Error> Open(const v1::SealedReply& sealed, const Asked& asked) const {
    if (auto checked = trust.Check(sealed, asked, AskDaemon()); !checked) return std::unexpected(std::move(checked.error()));
    v1::CompileReply reply;
    if (!reply.ParseFromString(sealed.SerializeAsString())) {
      return std::unexpected(Error{.code = ErrorCode::kInternal, .message = "the daemon's reply is no kiln.v1.CompileReply"});
    }
    return FromProto(std::move(reply));
  }

  template <class Request>
  std::expected<Compiled, Error> CallForArtifact(const char* path, const Request& request, const Asked& asked,
                                                 const std::string& trace_parent = {}) const {
    if (auto learnt = trust.Learn(AskDaemon()); !learnt) return std::unexpected(std::move(learnt.error()));
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
    v1::SealedReply reply;
    const auto call = [&](grpc::ClientContext& context) {
      return grpc::internal::BlockingUnaryCall(channel.get(), method, &context, request, &reply);
    };
    auto called = Try(call, {.trace_parent = trace_parent});
    if (!called) return std::unexpected(std::move(called.error()));
    return Open(reply, asked);
  }

  template <class OnNews>
  std::expected<void, Error> Ensure(const v1::EnsureRequest& manifest, const OnNews& on_news) const {
    const auto count = static_cast<std::uint32_t>(manifest.requests_size());
    const auto strays = [&](const v1::EnsuredKernel& kernel) { return kernel.request() >= count; };
    bool begun = false, astray = false;
    auto ensured = Try(
        [&](grpc::ClientContext& context) {
          const auto reader = stub->EnsureKernels(&context, manifest);
          for (v1::EnsureProgress news; !astray && reader->Read(&news);) {
            begun = true;
            astray = std::ranges::any_of(news.kernels(), strays);
            astray ? context.TryCancel() : on_news(news);
          }
          return reader->Finish();
        },
        {.again = [&] { return !begun; }});
    if (!astray) return ensured;
    return std::unexpected(Error{.code = ErrorCode::kInternal, .message = "the daemon reports a request that the manifest does not have"});
  }

  Client::Result<RunResult> Run(const RunRequest& request) const;
  Client::Result<Tuned> Tune(const TuneRequest& request, const std::function<void(const TuneProgress&)>& on_progress) const;
  Client::Result<Chosen> CompileSpace(const CompileRequest& request, const TuneRequest& space,
                                      const std::function<void(const TuneProgress&)>& on_progress) const;
  Client::Result<Tuned> WatchTune(const std::string& watch, const std::function<void(const TuneProgress&)>& on_progress) const;

  // A queue that has no room says so after the stage "queued".
  Client::Result<Compiled> CompileStreaming(const v1::CompileRequest& request, const OnStage& on_stage, const std::string& trace_parent) const {
    if (auto learnt = trust.Learn(AskDaemon()); !learnt) return std::unexpected(std::move(learnt.error()));
    const grpc::internal::RpcMethod method("/kiln.v1.Kiln/CompileStream", grpc::internal::RpcMethod::SERVER_STREAMING);
    v1::SealedReply reply;
    bool begun = false;
    auto called = Try(
        [&](grpc::ClientContext& context) {
          const std::unique_ptr<grpc::ClientReader<v1::SealedProgress>> reader(
              grpc::internal::ClientReaderFactory<v1::SealedProgress>::Create(channel.get(), method, &context, request));
          for (v1::SealedProgress progress; reader->Read(&progress);) {
            begun = begun || progress.stage() != "queued";
            if (progress.has_reply()) reply.Swap(progress.mutable_reply());
            if (!progress.stage().empty()) on_stage(progress.stage());
          }
          return reader->Finish();
        },
        {.trace_parent = trace_parent, .again = [&] { return !begun; }});
    if (!called) return std::unexpected(std::move(called.error()));
    return Open(reply, {.request = &request});
  }
};

}  // namespace kiln
