// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/sqlite/reader_pool.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/sqlite/store_directory.h"

namespace kiln::cache {

// What the threads of a store count. Plain statistics: no order between them is promised.
struct StoreCounters {
  std::atomic<std::uint64_t> entries{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> hits{0};
  std::atomic<std::uint64_t> misses{0};
  std::atomic<std::uint64_t> puts{0};
  std::atomic<std::uint64_t> dropped_puts{0};
  std::atomic<std::uint64_t> evictions{0};
  std::atomic<std::uint64_t> corrupt{0};
  std::atomic<std::uint64_t> errors{0};
  std::atomic<std::uint64_t> set_aside{0};
  std::atomic<bool> read_only{false};
};

// Uses of entries since they were last written to the store.
class UseLog {
 public:
  struct Use {
    WallTime last;
    std::uint64_t order = 0;  // grows from use to use, whatever the clock says
    std::uint64_t count = 0;
  };
  using Uses = std::unordered_map<Digest, Use>;

  void Add(const Digest& key, WallTime now) {
    MutexLock lock(mutex_);
    Use& use = uses_[key];
    use.last = now;
    use.order = ++last_order_;
    ++use.count;
  }

  Uses Take() {
    MutexLock lock(mutex_);
    return std::exchange(uses_, {});
  }

  // Puts back what could not be written.
  void Restore(const Uses& uses) {
    MutexLock lock(mutex_);
    Merge(uses, uses_);
  }

  static void Merge(const Uses& uses, Uses& into) {
    for (const auto& [key, use] : uses) {
      Use& merged = into[key];
      if (merged.order < use.order) {
        merged.last = use.last;
        merged.order = use.order;
      }
      merged.count += use.count;
    }
  }

 private:
  Mutex mutex_;
  Uses uses_ KILN_GUARDED_BY(mutex_);
  std::uint64_t last_order_ KILN_GUARDED_BY(mutex_) = 0;
};

// What a store's threads share. Everything outlives the threads.
struct StoreContext {
  const SqliteOptions& options;
  const Clock& clock;
  StoreDirectory& directory;
  StoreCounters& counters;
  UseLog& uses;
  ReaderPool& readers;

  void Tell(ErrorCode code, std::string message) const {
    if (options.on_event) options.on_event({code, std::move(message)});
  }
};

}  // namespace kiln::cache
