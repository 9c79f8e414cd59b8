// SPDX-License-Identifier: Apache-2.0
//
// Where a key's entry and its lease are. Its home, 0, is the slot of its plain name. While the server of that slot is gone, and no replica has
// taken over, they are in the first of its other homes that is another server's: a name with a number behind the key is in another slot. So
// hosts that see the same servers agree without asking, and make each result once meanwhile, too. Hosts that do not see the same make it twice
// at worst.
#pragma once

#include "cache/digest.h"
#include "cache/redis/cluster.h"
#include "cache/redis/names.h"

namespace kiln::cache::redis {

inline constexpr unsigned kHomes = 8;

// Where a key is when its own server is gone; 0: nowhere.
inline unsigned OtherHome(const Digest& key, const Cluster& cluster) {
  const unsigned slot = Names(key).slot;
  for (unsigned home = 1; home < kHomes; ++home) {
    const unsigned other = Names(key, home).slot;
    if (cluster.InUse(other) && !cluster.SameServer(slot, other)) return home;
  }
  return 0;
}

// Where it is now.
inline unsigned HomeOf(const Digest& key, const Cluster& cluster) { return cluster.InUse(Names(key).slot) ? 0 : OtherHome(key, cluster); }

}  // namespace kiln::cache::redis
