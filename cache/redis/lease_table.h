// SPDX-License-Identifier: Apache-2.0
//
// The leases that this process holds: who puts a result learns from it that it puts under one.
//
// All members may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/digest.h"
#include "cache/mutex.h"

namespace kiln::cache::redis {

struct HeldLease {
  std::string token;  // no two leases have the same
  std::uint64_t fence = 0;
  unsigned home = 0;  // where it is (homes.h)
};

class LeaseTable {
 public:
  void Add(const Digest& key, HeldLease lease) {
    MutexLock lock(mutex_);
    held_.insert_or_assign(key, std::move(lease));
  }
  // That lease, if it was still there.
  std::optional<HeldLease> Remove(const Digest& key, const std::string& token) {
    MutexLock lock(mutex_);
    const auto at = held_.find(key);
    if (at == held_.end() || at->second.token != token) return std::nullopt;
    std::optional<HeldLease> removed = std::move(at->second);
    held_.erase(at);
    return removed;
  }
  std::optional<HeldLease> Find(const Digest& key) const {
    MutexLock lock(mutex_);
    const auto at = held_.find(key);
    if (at == held_.end()) return std::nullopt;
    return at->second;
  }
  std::vector<std::pair<Digest, HeldLease>> All() const {
    MutexLock lock(mutex_);
    return {held_.begin(), held_.end()};
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<Digest, HeldLease> held_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::cache::redis
