// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/replies.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cache/outside/packed_entry.h"
#include "cache/redis/protocol.h"

namespace {

using namespace kiln::cache;
using namespace kiln::cache::redis;

constexpr std::size_t kLimit = 4096;
constexpr std::size_t kMostEntry = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kLease{2'500};

void Check(bool holds) {
  if (!holds) std::abort();
}

bool IsWellFormed(const HostPort& at) { return IsHost(at.host) && at.port != 0; }

std::size_t Items(const Reply& reply) {
  std::size_t items = reply.items.size();
  for (const Reply& item : reply.items) items += Items(item);
  return items;
}

// Whatever is in it, what is taken from it is possible.
void Use(const Reply& reply) {
  const HostPort from{"10.0.0.1", 6379};
  Check(Items(reply) <= std::size_t{1} << 19);
  if (const auto sent = RedirectionIn(reply, from)) Check(IsWellFormed(sent->to));
  for (const Slots& slots : SlotsIn(reply, from)) {
    Check(slots.first <= slots.last && slots.last < kSlots && IsWellFormed(slots.master));
    Check(std::ranges::all_of(slots.replicas, IsWellFormed));
  }
  const LeaseAnswer lease = LeaseIn(reply, kLease);
  Check(lease.left >= std::chrono::milliseconds(0) && lease.left <= 2 * kLease);
  Check(lease.end != Leases::End::kMine || lease.fence > 0);
  if (const auto left = LeaseLeftIn(reply, kLease)) Check(*left <= 2 * kLease);
  if (reply.is_array() && reply.items.size() == 2) {
    const auto entry = EntryFrom(Digest(), reply.items[0].text, reply.items[1].text, kMostEntry);
    Check(!entry || entry->sealed().size() <= kMostEntry);
  }
}

// Gives the bytes in pieces of that size; what came of them.
std::size_t ReadInPieces(std::string_view bytes, std::size_t piece) {
  ReplyReader reader(kLimit);
  std::size_t replies = 0;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    if (!reader.Feed(bytes.substr(0, piece))) return replies;
    for (;;) {
      const auto reply = reader.Next();
      if (!reply) return replies;
      if (!*reply) break;
      ++replies;
      Use(**reply);
    }
  }
  return replies;
}

}  // namespace

// What a server sends, in pieces of any size: the replies are the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > kLimit) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Check(ReadInPieces(bytes, 1) == ReadInPieces(bytes, 7));
  ReadInPieces(bytes, kLimit);
  return 0;
}
