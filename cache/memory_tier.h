// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/tier.h"

namespace kiln::cache {

// L0: entries in memory, least recently used out first. Never blocks on anything but short locks, one per shard, and
// a hit copies one pointer. Entries are immutable and were verified when they were made, so they are not verified here.
class MemoryTier final : public Tier {
 public:
  struct Options {
    std::uint64_t capacity = std::uint64_t{256} << 20;  // bytes, bookkeeping included
    std::size_t shards = 16;
  };

  explicit MemoryTier(const Options& options);
  ~MemoryTier() override;

  std::string_view name() const override { return "memory"; }
  bool blocking() const override { return false; }
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override;

  // An entry larger than a shard's share is not kept; `done` gets kInvalid.
  void Put(Entry entry, PutDone done = {}) override;
  std::expected<bool, Error> Erase(const Digest& key) override;
  TierStats Stats() const override;

 private:
  class Shard;
  Shard& ShardOf(const Digest& key) const;

  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace kiln::cache
