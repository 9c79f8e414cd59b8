// SPDX-License-Identifier: Apache-2.0
#include "server/wire/message_reader.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/proto_buffer_reader.h>

namespace kiln::server {
namespace {

constexpr std::size_t kAnyMessage = std::size_t{1} << 20;

Failure Malformed(std::string message) { return {.kind = Failure::Kind::kMalformed, .message = std::move(message)}; }

std::expected<void, Failure> CheckMemory(const google::protobuf::Descriptor& type, std::size_t bytes, std::size_t memory, std::size_t extra) {
  if (memory <= 2 * bytes + kAnyMessage + extra) return {};
  return std::unexpected(
      Malformed(fmt::format("the {} bytes of this {} would take {} in memory, more than any that a client of Kiln sends: they "
                            "are unknown fields, or empty ones",
                            bytes, std::string_view(type.name()), memory)));
}

// A newer client means something by it that this kilnd would not do.
std::expected<void, Failure> CheckKnown(const std::optional<ir::WireSize::Foreign>& foreign) {
  if (!foreign) return {};
  const auto* field = foreign->message->FindFieldByNumber(foreign->number);
  const std::string_view message(foreign->message->name());
  const std::string what = field == nullptr ? fmt::format("{} has no field {}", message, foreign->number)
                           : foreign->value ? fmt::format("{}.{} cannot be {}", message, field->name(), *foreign->value)
                                            : fmt::format("{}.{} is no value of this kind", message, field->name());
  return std::unexpected(Malformed(fmt::format("the request says what this kilnd does not know: {}; is the client newer than kilnd?", what)));
}

std::expected<void, Failure> Checked(bool parsed, const google::protobuf::Descriptor& type, const ir::WireSize& size) {
  if (parsed) return CheckKnown(size.foreign());
  return std::unexpected(Malformed(fmt::format("the request is no {}; is the client of this protocol version?", std::string_view(type.full_name()))));
}

}  // namespace

ir::WireSize Measure(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& bytes) {
  grpc::ByteBuffer shared = bytes;  // the reader wants to write to it
  grpc::ProtoBufferReader reader(&shared);
  google::protobuf::io::CodedInputStream stream(&reader);
  return ir::WireSize(type, stream);
}

std::expected<void, Failure> ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message, std::size_t extra) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const ir::WireSize size = Measure(type, bytes);
  if (auto fits = CheckMemory(type, bytes.Length(), size.memory(), extra); !fits) return fits;
  const google::protobuf::LogSilencer silencer;      // it would write what it dislikes to stderr; the caller is told
  auto& own = const_cast<grpc::ByteBuffer&>(bytes);  // the call's, which keeps it until its end
  grpc::ProtoBufferReader reader(&own);
  const bool parsed = message.ParseFromZeroCopyStream(&reader);
  own.Clear();
  return Checked(parsed, type, size);
}

std::expected<void, Failure> ReadMessage(std::string_view bytes, google::protobuf::Message& message, std::size_t extra) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const ir::WireSize size(type, bytes);
  if (auto fits = CheckMemory(type, bytes.size(), size.memory(), extra); !fits) return fits;
  const google::protobuf::LogSilencer silencer;
  return Checked(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())), type, size);
}

}  // namespace kiln::server
