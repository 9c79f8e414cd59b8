// SPDX-License-Identifier: Apache-2.0
//
// An entry as a Redis server keeps it: one hash, whose name is made of the entry's key. All names of a key are in one slot.
//
//   kiln:1:{KEY}         h  the head of the sealed entry, which ends with its digest
//                        b  its body, compressed (one frame of zstd)
//                        f  the fencing number of the lease under which it was put; 0: none
//   kiln:1:{KEY}:lease   who makes it (redis_leases.h)
//   kiln:1:{KEY}:fence   the last fencing number
//   kiln:1:done:KEY      the channel on which the end of a lease is told
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "cache/entry.h"
#include "cache/error.h"

namespace kiln::cache::redis {

struct Names {
  explicit Names(const Digest& key);

  std::string entry, lease, fence, channel;
  unsigned slot;
};

std::string Compress(std::string_view body);

// Treats both as hostile; kCorrupt says what disagreed. An entry of more than `most` bytes is corrupt, since nobody puts such a one.
std::expected<Entry, Error> EntryFrom(const Digest& key, std::string_view head, std::string_view compressed, std::uint64_t most);

}  // namespace kiln::cache::redis
