// SPDX-License-Identifier: Apache-2.0
#include "server/reply/status_map.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>

#include "kiln/rpc/status.pb.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::size_t kMaxMessage = 1000;
constexpr std::size_t kReserved = 512;  // of the details, for all that is not a diagnostic

grpc::StatusCode CodeOf(Kind kind) {
  switch (kind) {
    case Kind::kMalformed: return grpc::StatusCode::INVALID_ARGUMENT;
    case Kind::kInvalid: return grpc::StatusCode::INVALID_ARGUMENT;
    case Kind::kUnsupported: return grpc::StatusCode::UNIMPLEMENTED;
    case Kind::kNotFound: return grpc::StatusCode::NOT_FOUND;
    case Kind::kRefused: return grpc::StatusCode::PERMISSION_DENIED;
    case Kind::kUnauthenticated: return grpc::StatusCode::UNAUTHENTICATED;
    case Kind::kForbidden: return grpc::StatusCode::PERMISSION_DENIED;
    case Kind::kQuota: return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Kind::kQueueFull: return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Kind::kTooMuch: return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Kind::kDraining: return grpc::StatusCode::UNAVAILABLE;
    case Kind::kNoWorker: return grpc::StatusCode::UNAVAILABLE;
    case Kind::kCancelled: return grpc::StatusCode::CANCELLED;
    case Kind::kStore: return grpc::StatusCode::UNAVAILABLE;
    case Kind::kDefect: return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::UNKNOWN;
}

constexpr std::array<std::string_view, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

rpc::RetryInfo RetryAfter(std::chrono::milliseconds delay) {
  rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(delay.count() / 1000);
  info.mutable_retry_delay()->set_nanos(static_cast<int>(delay.count() % 1000 * 1'000'000));
  return info;
}

std::string Shortened(std::string_view message, std::size_t limit) {
  if (message.size() <= limit) return std::string(message);
  while (limit > 0 && (static_cast<unsigned char>(message[limit]) & 0xC0) == 0x80) --limit;  // not inside a UTF-8 sequence
  return std::string(message.substr(0, limit)) + " …";
}

}  // namespace

std::string_view ReasonOf(Kind kind) {
  switch (kind) {
    case Kind::kMalformed: return "malformed";
    case Kind::kInvalid: return "invalid";
    case Kind::kUnsupported: return "unsupported";
    case Kind::kNotFound: return "not-found";
    case Kind::kRefused: return "refused";
    case Kind::kUnauthenticated: return "unauthenticated";
    case Kind::kForbidden: return "forbidden";
    case Kind::kQuota: return "quota";
    case Kind::kQueueFull: return "queue-full";
    case Kind::kTooMuch: return "too-much";
    case Kind::kDraining: return "draining";
    case Kind::kNoWorker: return "no-worker";
    case Kind::kCancelled: return "cancelled";
    case Kind::kStore: return "store";
    case Kind::kDefect: return "defect";
  }
  return {};
}

std::vector<std::string> AllReasons() {
  std::vector<std::string> all;
  for (int kind = 0; !ReasonOf(static_cast<Kind>(kind)).empty(); ++kind) all.emplace_back(ReasonOf(static_cast<Kind>(kind)));
  return all;
}

std::string_view CodeName(int code) {
  return code >= 0 && static_cast<std::size_t>(code) < kCodeNames.size() ? kCodeNames[static_cast<std::size_t>(code)] : "UNKNOWN";
}

v1::CompileFailure FittingFailure(const Failure& failure, std::size_t limit) {
  v1::CompileFailure out;
  out.set_reproducer(failure.reproducer);
  std::size_t size = out.ByteSizeLong();
  std::size_t kept = 0;
  for (const v1::Diagnostic& diagnostic : failure.diagnostics) {
    size += diagnostic.ByteSizeLong() + 8;
    if (size + kReserved > limit) break;
    *out.add_diagnostics() = diagnostic;
    ++kept;
  }
  if (kept < failure.diagnostics.size()) {
    v1::Diagnostic& rest = *out.add_diagnostics();
    rest.set_severity(v1::Diagnostic::NOTE);
    rest.set_message(fmt::format("{} more diagnostics do not fit in the status", failure.diagnostics.size() - kept));
    rest.set_hint("correct these first; Compile sends as many details as its metadata `kiln-details-bytes` allows");
  }
  return out;
}

grpc::Status ToStatus(const Failure& failure, std::size_t details_bytes) {
  const grpc::StatusCode code = CodeOf(failure.kind);
  const std::string message = Shortened(failure.message, kMaxMessage);
  rpc::Status status;
  if (failure.retry_after) {
    google::protobuf::Any& detail = *status.add_details();
    detail.set_type_url("type.googleapis.com/google.rpc.RetryInfo");  // as others know it
    detail.set_value(RetryAfter(*failure.retry_after).SerializeAsString());
  } else if (!failure.diagnostics.empty() || !failure.reproducer.empty()) {
    status.add_details()->PackFrom(FittingFailure(failure, std::min(details_bytes, kMaxDetailsBytes)));
  }
  if (status.details().empty()) return grpc::Status(code, message);
  status.set_code(code);
  status.set_message(Shortened(message, 200));
  return grpc::Status(code, message, status.SerializeAsString());
}

}  // namespace kiln::server
