// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cache/mutex.h"

namespace kiln::cache {
namespace {

// What an entry costs beside its bytes: list and map nodes, payload, views. Measured, rounded up.
constexpr std::uint64_t kOverhead = 512;

std::uint64_t Charge(const Entry& entry) { return entry.sealed().size() + kOverhead; }

}  // namespace

class MemoryTier::Shard {
 public:
  explicit Shard(std::uint64_t capacity) : capacity_(capacity) {}

  std::uint64_t capacity() const { return capacity_; }

  std::optional<Entry> Get(const Digest& key) {
    MutexLock lock(mutex_);
    const auto at = index_.find(key);
    if (at == index_.end()) {
      ++stats_.misses;
      return std::nullopt;
    }
    ++stats_.hits;
    order_.splice(order_.begin(), order_, at->second);
    return *at->second;
  }

  void Put(Entry entry) {
    // What is replaced or evicted is released after the lock: freeing megabytes takes a while.
    std::list<Entry> released;
    MutexLock lock(mutex_);
    Remove(entry.key(), released);
    stats_.bytes += Charge(entry);
    ++stats_.puts;
    order_.push_front(std::move(entry));
    index_.emplace(order_.front().key(), order_.begin());
    while (stats_.bytes > capacity_) {
      Remove(order_.back().key(), released);
      ++stats_.evictions;
    }
  }

  bool Erase(const Digest& key) {
    std::list<Entry> released;
    MutexLock lock(mutex_);
    return Remove(key, released);
  }

  void AddTo(TierStats& sum) const {
    MutexLock lock(mutex_);
    sum.entries += index_.size();
    sum.bytes += stats_.bytes;
    sum.capacity += capacity_;
    sum.hits += stats_.hits;
    sum.misses += stats_.misses;
    sum.puts += stats_.puts;
    sum.evictions += stats_.evictions;
  }

 private:
  // By value: the key may live in the entry that is removed.
  bool Remove(Digest key, std::list<Entry>& released) KILN_REQUIRES(mutex_) {
    const auto at = index_.find(key);
    if (at == index_.end()) return false;
    stats_.bytes -= Charge(*at->second);
    released.splice(released.begin(), order_, at->second);
    index_.erase(at);
    return true;
  }

  const std::uint64_t capacity_;
  mutable Mutex mutex_;
  std::list<Entry> order_ KILN_GUARDED_BY(mutex_);  // the most recently used first
  std::unordered_map<Digest, std::list<Entry>::iterator> index_ KILN_GUARDED_BY(mutex_);
  TierStats stats_ KILN_GUARDED_BY(mutex_);
};

MemoryTier::MemoryTier(const Options& options) {
  const std::size_t shards = std::max<std::size_t>(options.shards, 1);
  for (std::size_t i = 0; i < shards; ++i) shards_.push_back(std::make_unique<Shard>(options.capacity / shards));
}

MemoryTier::~MemoryTier() = default;

// The map inside a shard takes its hash from the first bytes of the key; the shard is chosen by the last ones, so that
// the two do not correlate.
MemoryTier::Shard& MemoryTier::ShardOf(const Digest& key) const {
  const std::size_t tail = key.bytes[Digest::kSize - 1] | std::size_t{key.bytes[Digest::kSize - 2]} << 8;
  return *shards_[tail % shards_.size()];
}

std::expected<std::optional<Entry>, Error> MemoryTier::Get(const Digest& key) { return ShardOf(key).Get(key); }

void MemoryTier::Put(Entry entry, PutDone done) {
  Shard& shard = ShardOf(entry.key());
  std::expected<void, Error> outcome;
  if (Charge(entry) > shard.capacity()) {
    outcome = Fail(ErrorCode::kInvalid, fmt::format("an entry of {} bytes; memory shards hold {}", entry.sealed().size(), shard.capacity()));
  } else {
    shard.Put(std::move(entry));
  }
  if (done) done(std::move(outcome));
}

std::expected<bool, Error> MemoryTier::Erase(const Digest& key) { return ShardOf(key).Erase(key); }

TierStats MemoryTier::Stats() const {
  TierStats stats;
  for (const auto& shard : shards_) shard->AddTo(stats);
  return stats;
}

}  // namespace kiln::cache
