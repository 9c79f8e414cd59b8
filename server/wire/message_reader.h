// SPDX-License-Identifier: Apache-2.0
//
// Parses clients' messages. Every method takes its request as bytes: gRPC would parse it before kilnd has checked the caller, and two bytes
// of a message may take a hundred in memory.
#pragma once

#include <cstddef>
#include <expected>
#include <string_view>

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "ir/codec/wire_size.h"
#include "server/reply/failure.h"

namespace kiln::server {

ir::WireSize Measure(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& bytes);

// Refuses bytes that are no such message, those that would take more memory than twice their size, 1 MiB and `extra` together, and those with
// fields or enum values that this version of the protocol does not have: nothing is taken and ignored. The bytes are released afterwards.
std::expected<void, Failure> ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message, std::size_t extra = 0);
std::expected<void, Failure> ReadMessage(std::string_view bytes, google::protobuf::Message& message, std::size_t extra = 0);

}  // namespace kiln::server
