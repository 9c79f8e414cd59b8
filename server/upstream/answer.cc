// SPDX-License-Identifier: Apache-2.0
#include "server/upstream/answer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "kiln/rpc/status.pb.h"
#include "server/reply/reply.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::chrono::milliseconds kSoon{1'000};
constexpr std::chrono::seconds kLongestRetry{3'600};  // that a kilnd may name

template <class Message>
void AddFrom(const google::protobuf::UnknownFieldSet& fields, int number, std::vector<Message>& out) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() != number || field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (Message message; message.ParseFromString(field.length_delimited())) out.push_back(std::move(message));
  }
}

struct Details {
  std::optional<v1::CompileFailure> failure;
  std::optional<std::chrono::milliseconds> retry_after;
};

Details DetailsOf(const grpc::Status& status) {
  Details details;
  rpc::Status all;
  if (!all.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& detail : all.details()) {
    if (v1::CompileFailure failure; detail.UnpackTo(&failure)) details.failure = std::move(failure);
    rpc::RetryInfo retry;
    if (!detail.type_url().ends_with("/google.rpc.RetryInfo") || !retry.ParseFromString(detail.value())) continue;
    const auto seconds = std::chrono::seconds(std::clamp<std::int64_t>(retry.retry_delay().seconds(), 0, kLongestRetry.count()));
    details.retry_after = seconds + std::chrono::milliseconds(std::clamp(retry.retry_delay().nanos() / 1'000'000, 0, 999));
  }
  return details;
}

}  // namespace

std::expected<ForwardedReply, std::string> ReadForwarded(const grpc::ByteBuffer& bytes) {
  const google::protobuf::LogSilencer silencer;
  grpc::ByteBuffer shared = bytes;  // the reader wants to write to it
  grpc::ProtoBufferReader reader(&shared);
  ForwardedReply reply;
  if (!reply.sealed.ParseFromZeroCopyStream(&reader)) return std::unexpected("it is no reply");
  const auto& more = reply.sealed.GetReflection()->GetUnknownFields(reply.sealed);
  AddFrom(more, v1::CompileReply::kTimingsFieldNumber, reply.timings);
  AddFrom(more, v1::CompileReply::kDumpsFieldNumber, reply.dumps);
  reply.sealed.DiscardUnknownFields();
  if (!reply.sealed.has_seal()) return std::unexpected("it is not signed");
  if (!reply.provenance.ParseFromString(reply.sealed.seal().provenance())) return std::unexpected("its provenance is no message");
  return reply;
}

std::expected<cache::Entry, std::string> EntryOf(const ForwardedReply& reply, const Expected& expected) {
  const v1::Provenance& said = reply.provenance;
  if (said.compiler() != expected.build_id) {
    return std::unexpected(fmt::format("it is by the compiler {}, and this kilnd keeps what {} compiles", said.compiler(), expected.build_id));
  }
  if (reply.sealed.key() != expected.key.view()) return std::unexpected("it is of another program than was asked for, or made with another ptxas");
  auto entry =
      SealReply(expected.kept_under, expected.tenant, reply.sealed.SerializeAsString(),
                {.target = said.target(), .name = said.name(), .compiler = said.compiler(), .portable_key = said.portable_key()}, expected.program);
  if (!entry) return std::unexpected(std::move(entry.error().message));
  return std::move(*entry);
}

Failure NobodyCompiles(std::string_view address, std::string_view why, std::chrono::milliseconds retry_after) {
  return {.kind = Kind::kNoWorker,
          .message = fmt::format("this kilnd has no workers, and the upstream kilnd at {} does not compile this now: {}", address, why),
          .retry_after = retry_after};
}

Failure FailureOf(const grpc::Status& status, std::string_view address) {
  const Details details = DetailsOf(status);
  const auto says = [&](std::string_view what) { return fmt::format("the upstream kilnd at {} {}: {}", address, what, status.error_message()); };
  const auto retry_after = details.retry_after.value_or(kSoon);
  const auto with_details = [&](Kind kind) {
    Failure failure{.kind = kind, .message = status.error_message()};
    if (!details.failure) return failure;
    failure.diagnostics.assign(details.failure->diagnostics().begin(), details.failure->diagnostics().end());
    failure.reproducer = details.failure->reproducer();
    return failure;
  };
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      if (details.failure) return with_details(Kind::kInvalid);
      return {.kind = Kind::kMalformed, .message = says("takes no such request")};
    case grpc::StatusCode::UNIMPLEMENTED:
      if (details.failure) return with_details(Kind::kUnsupported);
      return NobodyCompiles(address, status.error_message(), retry_after);
    case grpc::StatusCode::INTERNAL:
      if (details.failure) return with_details(Kind::kDefect);
      return NobodyCompiles(address, status.error_message(), retry_after);
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED: return {.kind = Kind::kRefused, .message = says("does not compile for this host (--upstream-tokens)")};
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (details.retry_after) return {.kind = Kind::kQueueFull, .message = says("is busy"), .retry_after = retry_after};
      return {.kind = Kind::kTooMuch, .message = says("does not take this request")};
    default: return NobodyCompiles(address, status.error_message(), retry_after);
  }
}

}  // namespace kiln::server
