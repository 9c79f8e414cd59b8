// SPDX-License-Identifier: Apache-2.0
#include "server/upstream/upstream_tier.h"

#include <utility>

namespace kiln::server {

using cache::ErrorCode;

std::expected<cache::Entry, cache::Error> FetchedEntry(const cache::Digest& key, std::string bytes) {
  auto entry = cache::Unseal(std::move(bytes));
  if (!entry) return cache::Fail(ErrorCode::kCorrupt, "entry of the upstream kilnd: " + entry.error().message);
  if (entry->key() != key) return cache::Fail(ErrorCode::kCorrupt, "entry of the upstream kilnd: it is kept under another key than was asked for");
  return entry;
}

std::expected<std::optional<cache::Entry>, cache::Error> UpstreamTier::GetWithin(const cache::Digest& key, cache::Waited& waited) {
  auto bytes = peer_->Fetch(key, waited);
  if (!bytes) {
    ++errors_;
    return std::unexpected(std::move(bytes.error()));
  }
  if (!*bytes) {
    ++misses_;
    return std::nullopt;
  }
  auto entry = FetchedEntry(key, std::move(**bytes));
  if (!entry) {
    ++corrupt_;
    return std::unexpected(std::move(entry.error()));
  }
  ++hits_;
  return std::move(*entry);
}

void UpstreamTier::Put(cache::Entry, cache::PutDone done) {
  if (done) done(cache::Fail(ErrorCode::kInvalid, "nothing is put into the upstream kilnd"));
}

std::expected<bool, cache::Error> UpstreamTier::Erase(const cache::Digest&) {
  return cache::Fail(ErrorCode::kInvalid, "nothing is erased in the upstream kilnd");
}

cache::TierStats UpstreamTier::Stats() const { return {.hits = hits_, .misses = misses_, .corrupt = corrupt_, .errors = errors_}; }

}  // namespace kiln::server
