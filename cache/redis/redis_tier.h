// SPDX-License-Identifier: Apache-2.0
//
// The tier that hosts share: one Redis server, or a Redis Cluster.
//
// It is an outside tier: what it holds is verified by its digests here, and by its signature in TieredCache. Get waits no longer than the
// timeout for it, whatever it is asked before, and not at all for a server that is left alone (node.h). Put hands over to the queue (write_queue.h).
#pragma once

#include <chrono>
#include <memory>

#include "cache/redis/cluster.h"
#include "cache/redis/lease_table.h"
#include "cache/redis/write_queue.h"
#include "cache/tier.h"

namespace kiln::cache::redis {

class RedisTier final : public Tier {
 public:
  struct Options {
    std::uint64_t max_entry = std::uint64_t{8} << 20;  // bytes of a sealed entry; larger ones stay out
    WriteQueue::Options queue;
  };

  RedisTier(Options options, std::shared_ptr<Cluster> cluster, std::shared_ptr<LeaseTable> leases);

  std::string_view name() const override { return "redis"; }
  bool blocking() const override { return true; }
  bool outside() const override { return true; }
  bool available() const override { return cluster_->available(); }
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override;
  std::expected<std::optional<Entry>, Error> GetWithin(const Digest& key, Waited& waited) override;
  void Put(Entry entry, PutDone done = {}) override;
  std::expected<bool, Error> Erase(const Digest& key) override;
  TierStats Stats() const override;

  // Ends a lease of this process after what was put under it.
  void Release(const Digest& key, HeldLease lease) { writes_.Release(key, std::move(lease)); }

 private:
  std::expected<std::optional<Entry>, Error> Read(const Digest& key, Waited& waited);
  std::expected<std::optional<Entry>, Error> ReadAt(const Digest& key, unsigned home, Waited& waited);
  std::expected<bool, Error> EraseAt(const Digest& key, unsigned home);

  const Options options_;
  const std::shared_ptr<Cluster> cluster_;
  const std::shared_ptr<LeaseTable> leases_;
  ReadCounters reads_;
  WriteQueue writes_;
};

}  // namespace kiln::cache::redis
