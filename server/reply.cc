// SPDX-License-Identifier: Apache-2.0
#include "server/reply.h"

#include <array>

#include "kiln/v1/service.pb.h"

namespace kiln::server {
namespace {

constexpr std::string_view kReply = "reply";
constexpr std::string_view kFailure = "failure";

// What `kiln cache ls` shows; times and sizes are the store's business.
std::string Label(std::string_view target, std::string_view name, bool refused) {
  v1::CacheEntry label;
  label.set_target(std::string(target));
  label.set_name(std::string(name.substr(0, 200)));
  label.set_refused(refused);
  return label.SerializeAsString();
}

std::optional<Outcome> FailureFrom(std::string_view kept) {
  v1::KeptFailure message;
  if (!message.ParseFromArray(kept.data(), static_cast<int>(kept.size()))) return std::nullopt;
  Failure failure{.kind = message.unsupported() ? Failure::Kind::kUnsupported : Failure::Kind::kInvalid,
                  .message = message.message()};
  failure.diagnostics.assign(message.diagnostics().begin(), message.diagnostics().end());
  return std::unexpected(std::move(failure));
}

}  // namespace

std::string Reply::Tail() const {
  v1::CompileReply rest;
  rest.set_origin(origin);
  for (const v1::Timing& timing : timings) *rest.add_timings() = timing;
  return rest.SerializeAsString();
}

std::expected<cache::Entry, cache::Error> SealReply(const cache::Digest& key, const v1::CompileReply& reply,
                                                    std::string_view name) {
  const std::string bytes = reply.SerializeAsString();
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{kReply, bytes}};
  return cache::Seal(key, Label(reply.artifact().target(), name, false), blobs);
}

std::expected<cache::Entry, cache::Error> SealFailure(const cache::Digest& key, const Failure& failure, std::string_view target,
                                                      std::string_view name) {
  v1::KeptFailure message;
  message.set_unsupported(failure.kind == Failure::Kind::kUnsupported);
  message.set_message(failure.message);
  for (const v1::Diagnostic& diagnostic : failure.diagnostics) *message.add_diagnostics() = diagnostic;
  const std::string bytes = message.SerializeAsString();
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{kFailure, bytes}};
  return cache::Seal(key, Label(target, name, true), blobs);
}

cache::Digest FailureKey(const cache::Digest& key, std::string_view module) {
  return cache::Hasher().Update("refused").Update(key.view()).Update(module).Finish();
}

std::optional<Outcome> OutcomeFrom(const cache::Entry& entry, v1::Origin origin) {
  if (const std::string_view kept = entry.blob(kReply); !kept.empty()) {
    return Reply{entry.key(), entry.shared_sealed(), kept, origin, {}};
  }
  if (const std::string_view kept = entry.blob(kFailure); !kept.empty()) return FailureFrom(kept);
  return std::nullopt;
}

}  // namespace kiln::server
