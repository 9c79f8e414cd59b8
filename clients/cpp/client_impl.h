// SPDX-License-Identifier: Apache-2.0
//
// The inside of kiln::Client. Not part of its interface.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "clients/cpp/client.h"
#include "clients/cpp/convert.h"
#include "kiln/v1/service.grpc.pb.h"

namespace kiln {

struct Client::Impl {
  ConnectOptions options;
  std::unique_ptr<v1::Kiln::Stub> stub;

  void Prepare(grpc::ClientContext& context, const std::string& trace_parent = {}) const;
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

  Client::Result<Compiled> CompileStreaming(const CompileRequest& wanted, const OnStage& on_stage) const {
    const v1::CompileRequest request = ToProto(wanted);
    grpc::ClientContext context;
    Prepare(context, wanted.trace_parent);
    const auto reader = stub->CompileStream(&context, request);
    v1::CompileProgress progress;
    v1::CompileReply reply;
    while (reader->Read(&progress)) {
      if (progress.has_reply()) reply.Swap(progress.mutable_reply());
      if (!progress.stage().empty()) on_stage(progress.stage());
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return std::unexpected(Explain(status, context));
    return FromProto(std::move(reply));
  }
};

}  // namespace kiln
