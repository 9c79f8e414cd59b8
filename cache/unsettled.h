// SPDX-License-Identifier: Apache-2.0
//
// The entries that a cache serves from memory before a tier that outlives the process has them, or that none took. After such a tier has
// lost everything (Tier::losses) no entry counts as settled but those that it has been seen to have since.
//
// All members may be called from any thread; waiters are called on the thread that settles, and never under the lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cache/digest.h"
#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/tier.h"

namespace kiln::cache {

class Unsettled {
 public:
  // The most keys that are remembered. Beyond this number everything counts as not settled.
  static constexpr std::size_t kMost = std::size_t{1} << 16;

  // A put of the entry is under way; each Begin has its End.
  void Begin(const Digest& key) KILN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++entries_[key].under_way;
    Count();
  }

  // `losses`: of the tiers, as they are now.
  void End(const Digest& key, const std::expected<void, Error>& outcome, std::uint64_t losses) KILN_EXCLUDES(mutex_) {
    std::vector<PutDone> waiters;
    {
      MutexLock lock(mutex_);
      NoteLosses(losses);
      if (outcome) Remember(key);
      const auto at = entries_.find(key);
      Entry& entry = at->second;
      entry.lost = !outcome;
      if (--entry.under_way > 0) return;
      waiters = std::move(entry.waiters);
      entry.waiters.clear();
      forgot_ = forgot_ || (entry.lost && entries_.size() > kMost);
      if (!entry.lost || forgot_) entries_.erase(at);
      Count();
    }
    for (PutDone& waiter : waiters) waiter(outcome);
  }

  // A tier that outlives the process was seen to have the entry; `losses` as they were before it was asked.
  void Found(const Digest& key, std::uint64_t losses) KILN_EXCLUDES(mutex_) {
    if (losses == 0) return;
    MutexLock lock(mutex_);
    NoteLosses(losses);
    if (losses == losses_) Remember(key);
  }

  // Whether no put of the entry is under way, and the last one was taken and is not lost since.
  bool IsSettled(const Digest& key, std::uint64_t losses) KILN_EXCLUDES(mutex_) {
    if (count_ == 0 && losses == 0) return true;
    MutexLock lock(mutex_);
    NoteLosses(losses);
    return !forgot_ && !entries_.contains(key) && (losses_ == 0 || kept_since_.contains(key));
  }

  // Calls `done` with the outcome of the puts that are under way; false: there is none, and `done` is as it was.
  bool Await(const Digest& key, PutDone& done) KILN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end() || at->second.under_way == 0) return false;
    at->second.waiters.push_back(std::move(done));
    return true;
  }

 private:
  struct Entry {
    std::size_t under_way = 0;
    bool lost = false;  // the last put that ended had failed
    std::vector<PutDone> waiters;
  };

  void NoteLosses(std::uint64_t losses) KILN_REQUIRES(mutex_) {
    if (losses <= losses_) return;
    losses_ = losses;
    kept_since_.clear();
  }
  // Beyond kMost keys, some entries are put again when somebody asks for them.
  void Remember(const Digest& key) KILN_REQUIRES(mutex_) {
    if (losses_ > 0 && kept_since_.size() < kMost) kept_since_.insert(key);
  }
  void Count() KILN_REQUIRES(mutex_) { count_ = entries_.size() + (forgot_ ? 1 : 0); }

  std::atomic<std::size_t> count_ = 0;  // nothing to look for while it is 0
  mutable Mutex mutex_;
  std::unordered_map<Digest, Entry> entries_ KILN_GUARDED_BY(mutex_);
  std::uint64_t losses_ KILN_GUARDED_BY(mutex_) = 0;               // as far as anybody has noticed
  std::unordered_set<Digest> kept_since_ KILN_GUARDED_BY(mutex_);  // the last of them
  bool forgot_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::cache
