// SPDX-License-Identifier: Apache-2.0
//
// The inside of kiln::Client. Not part of its interface.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include "clients/cpp/client.h"
#include "clients/cpp/convert.h"
#include "clients/cpp/trust.h"
#include "kiln/v1/service.grpc.pb.h"

namespace kiln {

struct Client::Impl {
  explicit Impl(ConnectOptions given) : options(std::move(given)), trust(options.address) {}

  ConnectOptions options;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Kiln::Stub> stub;
  mutable Trust trust;

  // `at_least`: what the call may take though the connection's timeout is less.
  void Prepare(grpc::ClientContext& context, const std::string& trace_parent = {}, std::chrono::milliseconds at_least = {}) const;
  Error Explain(const grpc::Status& status, const grpc::ClientContext& context) const;

  template <class Request, class Reply>
  std::expected<Reply, Error> Call(grpc::Status (v1::Kiln::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                                   const Request& request, const std::string& trace_parent = {}) const {
    grpc::ClientContext context;
    Prepare(context, trace_parent);
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (!status.ok()) return std::unexpected(Explain(status, context));
    return reply;
  }

  // A page of it, in the order of keys.
  std::expected<std::vector<v1::CacheEntry>, Error> List(const v1::CacheListRequest& request) const {
    grpc::ClientContext context;
    Prepare(context);
    const auto reader = stub->CacheList(&context, request);
    std::vector<v1::CacheEntry> entries;
    for (v1::CacheEntry entry; reader->Read(&entry);) entries.push_back(std::move(entry));
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return std::unexpected(Explain(status, context));
    if (!request.after().empty() && !entries.empty() && entries.front().key() <= request.after()) {
      return std::unexpected(Error{.code = ErrorCode::kUnsupported, .message = "this kilnd is older than its client and lists its first entries only"});
    }
    return entries;
  }

  // What is loaded later is made from the very bytes that were verified.
  std::expected<Compiled, Error> Open(const v1::SealedReply& sealed, const Asked& asked) const {
    const auto ask = [this](Trust::Ask how) {
      v1::CapabilitiesRequest request;
      request.set_at_once(how == Trust::Ask::kAtOnce);
      return Call(&v1::Kiln::Stub::Capabilities, request);
    };
    if (auto checked = trust.Check(sealed, asked, ask); !checked) return std::unexpected(std::move(checked.error()));
    v1::CompileReply reply;
    if (!reply.ParseFromString(sealed.SerializeAsString())) {
      return std::unexpected(Error{.code = ErrorCode::kInternal, .message = "the daemon's reply is no kiln.v1.CompileReply"});
    }
    return FromProto(std::move(reply));
  }

  template <class Request>
  std::expected<Compiled, Error> CallForArtifact(const char* path, const Request& request, const Asked& asked,
                                                 const std::string& trace_parent = {}) const {
    grpc::ClientContext context;
    Prepare(context, trace_parent);
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
    v1::SealedReply reply;
    const grpc::Status status = grpc::internal::BlockingUnaryCall(channel.get(), method, &context, request, &reply);
    if (!status.ok()) return std::unexpected(Explain(status, context));
    return Open(reply, asked);
  }

  template <class OnNews>
  std::expected<void, Error> Ensure(const v1::EnsureRequest& manifest, const OnNews& on_news) const {
    const auto count = static_cast<std::uint32_t>(manifest.requests_size());
    grpc::ClientContext context;
    Prepare(context);
    const auto reader = stub->EnsureKernels(&context, manifest);
    for (v1::EnsureProgress news; reader->Read(&news);) {
      if (std::ranges::any_of(news.kernels(), [&](const v1::EnsuredKernel& kernel) { return kernel.request() >= count; })) {
        return std::unexpected(Error{.code = ErrorCode::kInternal, .message = "the daemon tells of a request that the manifest does not have"});
      }
      on_news(news);
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return std::unexpected(Explain(status, context));
    return {};
  }

  Client::Result<Compiled> CompileStreaming(const CompileRequest& wanted, const OnStage& on_stage) const {
    const v1::CompileRequest request = ToProto(wanted);
    grpc::ClientContext context;
    Prepare(context, wanted.trace_parent);
    const grpc::internal::RpcMethod method("/kiln.v1.Kiln/CompileStream", grpc::internal::RpcMethod::SERVER_STREAMING);
    const std::unique_ptr<grpc::ClientReader<v1::SealedProgress>> reader(
        grpc::internal::ClientReaderFactory<v1::SealedProgress>::Create(channel.get(), method, &context, request));
    v1::SealedProgress progress;
    v1::SealedReply reply;
    while (reader->Read(&progress)) {
      if (progress.has_reply()) reply.Swap(progress.mutable_reply());
      if (!progress.stage().empty()) on_stage(progress.stage());
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return std::unexpected(Explain(status, context));
    return Open(reply, {.request = &request});
  }
};

}  // namespace kiln
