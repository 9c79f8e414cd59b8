// SPDX-License-Identifier: Apache-2.0
//
// Ends a call that is refused: with its id, the reason in its record, and as many details as its client accepts.
#pragma once

#include <cstddef>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include "server/reply/failure.h"

namespace kiln::server {

// How many bytes of details this client accepts in a status.
std::size_t DetailsLimit(const grpc::CallbackServerContext& context);

// Metadata by which clients tell kilnd's answers from those of gRPC without a kilnd. Hits do not carry it.
void TellId(grpc::CallbackServerContext& context);

// What a call that is refused ends with, noted in its record.
grpc::Status Refuse(grpc::CallbackServerContext& context, const Failure& failure);

// A stream of the client's, or both ways, that ends before it begins.
template <class Message>
class RefusedUpload final : public grpc::ServerReadReactor<Message> {
 public:
  explicit RefusedUpload(const grpc::Status& status) { this->Finish(status); }

 private:
  void OnDone() override { delete this; }
};

template <class Request, class Reply>
class RefusedExchange final : public grpc::ServerBidiReactor<Request, Reply> {
 public:
  explicit RefusedExchange(const grpc::Status& status) { this->Finish(status); }

 private:
  void OnDone() override { delete this; }
};

}  // namespace kiln::server
