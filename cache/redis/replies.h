// SPDX-License-Identifier: Apache-2.0
//
// What servers say of other servers and of leases. All of it is hostile: what is not as it must be is nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/leases.h"
#include "cache/redis/address.h"
#include "cache/redis/protocol.h"

namespace kiln::cache::redis {

inline constexpr std::size_t kMostServers = 1'000;  // of one cluster (Redis Cluster Specification, "Redis Cluster goals")

struct Redirection {
  bool asking = false;  // this once: else from now on
  HostPort to;
};

bool IsRedirection(const Reply& reply);

// "MOVED 3999 127.0.0.1:6381", "ASK …". Without a host it is `from`, who says so.
std::optional<Redirection> RedirectionIn(const Reply& reply, const HostPort& from);

// Who holds these slots, from the first to the last.
struct Slots {
  unsigned first = 0, last = 0;
  HostPort master;
  std::vector<HostPort> replicas;
};

// In the answer to CLUSTER SLOTS. An unknown host is `from`, whom we asked. No more than kMostServers different servers are in it.
std::vector<Slots> SlotsIn(const Reply& reply, const HostPort& from);

struct LeaseAnswer {
  Leases::End end = Leases::End::kNone;
  std::uint64_t fence = 0;            // of kMine
  std::chrono::milliseconds left{0};  // of kOthers
};

// In the answer of scripts::kTake. A lease of nobody's making, which would never end or not for long, is none.
LeaseAnswer LeaseIn(const Reply& reply, std::chrono::milliseconds lease);

// In the answer to PTTL: how long such a lease lasts; nothing where there is none.
std::optional<std::chrono::milliseconds> LeaseLeftIn(const Reply& reply, std::chrono::milliseconds lease);

}  // namespace kiln::cache::redis
