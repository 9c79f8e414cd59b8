// SPDX-License-Identifier: Apache-2.0
//
// Messages as gRPC's byte buffers, without copies of what is large.
#pragma once

#include <string>
#include <string_view>

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include "cache/digest.h"
#include "server/reply/reply.h"

namespace kiln::server {

// A serialized CompileReply. Large replies share the memory of the cache.
grpc::ByteBuffer ToBuffer(const Reply& reply);

// A serialized CompileProgress that holds the reply, or a stage.
grpc::ByteBuffer ToProgress(const Reply& reply);
grpc::ByteBuffer ToProgress(std::string_view stage);

grpc::ByteBuffer ToBuffer(const google::protobuf::MessageLite& message);

std::string ToString(const grpc::ByteBuffer& buffer);

// The bytes of a call's request, which gRPC keeps no longer: the call may go on for minutes.
std::string TakeBytes(const grpc::ByteBuffer& request);

// The digest of the method's name and the bytes: the same bytes mean something else to another method.
cache::Digest DigestOf(std::string_view method, const grpc::ByteBuffer& buffer);
cache::Digest DigestOf(std::string_view method, std::string_view bytes);

}  // namespace kiln::server
