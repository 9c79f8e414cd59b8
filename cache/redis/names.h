// SPDX-License-Identifier: Apache-2.0
//
// An entry as a Redis server keeps it: one hash, whose name is made of the entry's key. All names of a key are in one slot. (While the server of
// that slot is gone, they are in another; cache/redis/homes.h says which, and how they are named there.)
//
//   kiln:1:{KEY}         h  the head of the sealed entry, which ends with its digest
//                        b  its body, compressed (cache/outside/packed_entry.h)
//                        f  the fencing number of the lease under which it was put; 0: none
//   kiln:1:{KEY}:lease   who makes it (redis_leases.h)
//   kiln:1:{KEY}:fence   the last fencing number
//   kiln:1:done:KEY      the channel on which the end of a lease is told
#pragma once

#include <string>

#include "cache/digest.h"
#include "cache/redis/address.h"

namespace kiln::cache::redis {

struct Names {
  explicit Names(const Digest& key, unsigned home = 0) {
    const std::string hex = key.ToHex();
    entry = "kiln:1:{" + hex + (home == 0 ? "" : "." + std::to_string(home)) + "}";
    lease = entry + ":lease";
    fence = entry + ":fence";
    channel = "kiln:1:done:" + hex;
    slot = SlotOf(entry);
  }

  std::string entry, lease, fence, channel;
  unsigned slot;
};

}  // namespace kiln::cache::redis
