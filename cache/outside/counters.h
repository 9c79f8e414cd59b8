// SPDX-License-Identifier: Apache-2.0
//
// What a tier outside of this host counts: entries that were asked for, and what was written behind the replies.
#pragma once

#include <atomic>
#include <cstdint>

#include "cache/tier.h"

namespace kiln::cache {

struct ReadCounters {
  std::atomic<std::uint64_t> hits = 0, misses = 0, errors = 0, corrupt = 0;
};

struct WriteCounters {
  std::atomic<std::uint64_t> puts = 0;
  std::atomic<std::uint64_t> dropped = 0;  // puts that were lost
  std::atomic<std::uint64_t> errors = 0;
  std::atomic<bool> full = false;  // the store took nothing, for lack of memory or space
};

inline TierStats StatsOf(const ReadCounters& reads, const WriteCounters& writes) {
  return {.hits = reads.hits,
          .misses = reads.misses,
          .puts = writes.puts,
          .dropped_puts = writes.dropped,
          .corrupt = reads.corrupt,
          .errors = reads.errors + writes.errors,
          .read_only = writes.full};
}

}  // namespace kiln::cache
