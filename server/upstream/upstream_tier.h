// SPDX-License-Identifier: Apache-2.0
//
// The upstream kilnd as the last tier of the cache. What it gives is verified by its digests here, and by its seal in TieredCache, as what
// the cluster store gives is. It is asked for the results and refusals of those on whose behalf somebody asks (Waited::asker), each with a
// token of their own, and for nothing else. Nothing is put there: an upstream kilnd keeps what it has compiled.
//
// A kilnd of another compiler build has other keys, and a lookup there simply misses.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cache/tier.h"
#include "server/upstream/peer.h"

namespace kiln::server {

inline constexpr std::string_view kUpstreamTier = "upstream";

class UpstreamTier final : public cache::Tier {
 public:
  explicit UpstreamTier(std::shared_ptr<Peer> peer) : peer_(std::move(peer)) {}

  std::string_view name() const override { return kUpstreamTier; }
  bool blocking() const override { return true; }
  bool outside() const override { return true; }
  bool read_only() const override { return true; }
  bool available() const override { return peer_->available(); }
  std::expected<std::optional<cache::Entry>, cache::Error> Get(const cache::Digest&) override { return std::nullopt; }  // nobody asks
  std::expected<std::optional<cache::Entry>, cache::Error> GetWithin(const cache::Digest& key, cache::Waited& waited) override;
  void Put(cache::Entry entry, cache::PutDone done = {}) override;
  std::expected<bool, cache::Error> Erase(const cache::Digest& key) override;
  cache::TierStats Stats() const override;

 private:
  const std::shared_ptr<Peer> peer_;
  std::atomic<std::uint64_t> hits_ = 0, misses_ = 0, errors_ = 0, corrupt_ = 0;
};

// The entry in the bytes that were fetched for that key.
std::expected<cache::Entry, cache::Error> FetchedEntry(const cache::Digest& key, std::string bytes);

}  // namespace kiln::server
