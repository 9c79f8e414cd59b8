// SPDX-License-Identifier: Apache-2.0
#include "server/reply/reply.h"

#include <array>

#include "kiln/v1/service.pb.h"
#include "server/reply/tenant_key.h"
#include "server/system/utf8.h"

namespace kiln::server {
namespace {

constexpr std::string_view kReply = "reply";
constexpr std::string_view kFailure = "failure";

// What `kiln cache ls` shows; times and sizes are the store's business.
std::string MetadataOf(const Label& label, std::string_view tenant, bool refused) {
  v1::CacheEntry out;
  out.set_tenant(std::string(tenant));
  out.set_target(std::string(label.target));
  out.set_name(LabelName(label.name));
  out.set_refused(refused);
  out.set_portable_key(std::string(label.portable_key));
  out.set_compiler(std::string(label.compiler));
  return out.SerializeAsString();
}

// The key of a serialized CompileReply: it comes first, because it has the lowest field number. An entry kept for a tenant is stored under
// another key.
cache::Digest KeyIn(std::string_view kept) {
  constexpr std::string_view kField("\x0a\x20", 2);  // field 1, 32 bytes
  const auto key = kept.starts_with(kField) ? cache::Digest::FromBytes(kept.substr(2, cache::Digest::kSize)) : std::nullopt;
  return key.value_or(cache::Digest());
}

std::optional<Outcome> FailureFrom(std::string_view kept) {
  v1::KeptFailure message;
  if (!message.ParseFromArray(kept.data(), static_cast<int>(kept.size()))) return std::nullopt;
  Failure failure{.kind = message.unsupported() ? Failure::Kind::kUnsupported : Failure::Kind::kInvalid, .message = message.message()};
  failure.diagnostics.assign(message.diagnostics().begin(), message.diagnostics().end());
  return std::unexpected(std::move(failure));
}

}  // namespace

std::string LabelName(std::string_view name) { return Utf8(name.substr(0, 200)); }

std::string Reply::Tail() const {
  v1::CompileReply rest;
  rest.set_origin(origin);
  rest.set_durable(durable);
  for (const v1::Timing& timing : timings) *rest.add_timings() = timing;
  return rest.SerializeAsString() + more;
}

std::string_view OriginText(v1::Origin origin) {
  switch (origin) {
    case v1::MEMORY: return "memory";
    case v1::DISK: return "disk";
    case v1::COMPILED: return "compiled";
    case v1::JOINED: return "joined";
    case v1::CLUSTER: return "cluster";
    case v1::BUNDLE: return "bundle";
    default: return {};
  }
}

std::expected<cache::Entry, cache::Error> SealReply(const cache::Digest& kept_under, std::string_view tenant, std::string_view sealed_reply,
                                                    const Label& label, std::string_view module) {
  const std::string reply_name = BlobOf(kReply, tenant), module_name = BlobOf(kModuleBlob, tenant);
  std::vector<cache::BlobView> blobs = {{reply_name, sealed_reply}};
  if (!module.empty()) blobs.push_back({module_name, module});
  return cache::Seal(kept_under, MetadataOf(label, tenant, false), blobs);
}

v1::KeptFailure ToKeep(const Failure& failure) {
  v1::KeptFailure message;
  message.set_unsupported(failure.kind == Failure::Kind::kUnsupported);
  message.set_message(failure.message);
  for (const v1::Diagnostic& diagnostic : failure.diagnostics) *message.add_diagnostics() = diagnostic;
  return message;
}

std::expected<cache::Entry, cache::Error> SealFailure(const cache::Digest& kept_under, std::string_view tenant, const v1::KeptFailure& failure,
                                                      const Label& label) {
  const std::string bytes = failure.SerializeAsString();
  const std::string blob = BlobOf(kFailure, tenant);
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{blob, bytes}};
  return cache::Seal(kept_under, MetadataOf(label, tenant, true), blobs);
}

cache::Digest FailureKey(const cache::Digest& key, std::string_view module) {
  return cache::Hasher().Update("refused").Update(key.view()).Update(module).Finish();
}

std::optional<Outcome> OutcomeFrom(const cache::Entry& entry, std::string_view tenant, v1::Origin origin, bool durable) {
  if (const std::string_view kept = entry.blob(BlobOf(kReply, tenant)); !kept.empty()) {
    return Reply{KeyIn(kept), entry.shared_sealed(), kept, origin, {}, durable};
  }
  if (const std::string_view kept = entry.blob(BlobOf(kFailure, tenant)); !kept.empty()) return FailureFrom(kept);
  return std::nullopt;
}

}  // namespace kiln::server
