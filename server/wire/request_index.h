// SPDX-License-Identifier: Apache-2.0
//
// The key of each request seen before, by the digest of its bytes: a request with the same bytes needs no decoding. It also holds when a
// lookup of that key last found nothing, so that it is not repeated at once. All entries are forgotten when something that goes into every
// key has changed. Bounded: each shard keeps two generations and drops the older when the younger is full; a find renews an entry.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cache/digest.h"
#include "cache/mutex.h"

namespace kiln::server {

class RequestIndex {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit RequestIndex(std::size_t capacity = 1 << 16) : generation_capacity_(capacity / kShards / 2) {}

  std::optional<cache::Digest> Find(const cache::Digest& request) {
    Shard& shard = ShardOf(request);
    cache::MutexLock lock(shard.mutex);
    const Seen* seen = Renew(shard, request);
    return seen == nullptr ? std::nullopt : std::optional(seen->key);
  }

  void NoteAbsent(const cache::Digest& request, Time now) {
    Shard& shard = ShardOf(request);
    cache::MutexLock lock(shard.mutex);
    if (Seen* seen = Renew(shard, request)) seen->absent = now;
  }
  bool WasAbsentSince(const cache::Digest& request, Time time) {
    Shard& shard = ShardOf(request);
    cache::MutexLock lock(shard.mutex);
    const Seen* seen = Renew(shard, request);
    return seen != nullptr && seen->absent >= time;
  }

  // To be asked before a key is made, and brought along with it.
  std::uint64_t generation() const { return generation_; }

  // Does nothing where Forget was called since.
  void Remember(const cache::Digest& request, const cache::Digest& key, std::uint64_t generation) {
    Shard& shard = ShardOf(request);
    cache::MutexLock lock(shard.mutex);
    if (generation == generation_) Insert(shard, request, {.key = key});
  }

  void Forget() {
    ++generation_;
    for (Shard& shard : shards_) {
      cache::MutexLock lock(shard.mutex);
      shard.young.clear();
      shard.old.clear();
    }
  }

 private:
  static constexpr std::size_t kShards = 16;
  struct Seen {
    cache::Digest key;
    Time absent = Time::min();
  };
  struct Shard {
    cache::Mutex mutex;
    std::unordered_map<cache::Digest, Seen> young KILN_GUARDED_BY(mutex);
    std::unordered_map<cache::Digest, Seen> old KILN_GUARDED_BY(mutex);
  };

  Shard& ShardOf(const cache::Digest& request) { return shards_[request.bytes.back() % kShards]; }

  // Null where it is not known.
  Seen* Renew(Shard& shard, const cache::Digest& request) KILN_REQUIRES(shard.mutex) {
    if (const auto at = shard.young.find(request); at != shard.young.end()) return &at->second;
    const auto at = shard.old.find(request);
    return at == shard.old.end() ? nullptr : Insert(shard, request, Seen(at->second));
  }

  Seen* Insert(Shard& shard, const cache::Digest& request, const Seen& seen) KILN_REQUIRES(shard.mutex) {
    if (shard.young.size() >= generation_capacity_) shard.old = std::exchange(shard.young, {});
    return &shard.young.insert_or_assign(request, seen).first->second;
  }

  const std::size_t generation_capacity_;
  std::atomic<std::uint64_t> generation_ = 0;
  std::array<Shard, kShards> shards_;
};

}  // namespace kiln::server
