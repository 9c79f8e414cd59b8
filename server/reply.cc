// SPDX-License-Identifier: Apache-2.0
#include "server/reply.h"

#include <array>

#include "kiln/v1/service.pb.h"

namespace kiln::server {
namespace {

constexpr std::string_view kBlob = "reply";

}  // namespace

std::string Reply::Tail() const {
  v1::CompileReply rest;
  rest.set_origin(origin);
  for (const v1::Timing& timing : timings) *rest.add_timings() = timing;
  return rest.SerializeAsString();
}

std::expected<cache::Entry, cache::Error> SealReply(const cache::Digest& key, const v1::CompileReply& reply,
                                                    std::string_view name) {
  v1::CacheEntry label;  // what `kiln cache ls` shows; times and sizes are the store's business
  label.set_target(reply.artifact().target());
  label.set_name(std::string(name.substr(0, 200)));
  const std::string bytes = reply.SerializeAsString();
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{kBlob, bytes}};
  return cache::Seal(key, label.SerializeAsString(), blobs);
}

std::optional<Reply> ReplyFrom(const cache::Entry& entry, v1::Origin origin) {
  const std::string_view kept = entry.blob(kBlob);
  if (kept.empty()) return std::nullopt;
  return Reply{entry.shared_sealed(), kept, origin, {}};
}

}  // namespace kiln::server
