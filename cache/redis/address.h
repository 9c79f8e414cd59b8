// SPDX-License-Identifier: Apache-2.0
//
// Where the servers of a cluster store are, and in which slot of it a name is.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "cache/outside/host_port.h"

namespace kiln::cache::redis {

struct StoreAddress {
  bool tls = false;
  std::vector<HostPort> servers;  // some of the cluster's, which tell of the others
};

// "redis://HOST:PORT,HOST:PORT", "rediss://…" for TLS. The error says what is wrong with it.
std::expected<StoreAddress, std::string> ParseStoreAddress(std::string_view text);

inline constexpr unsigned kSlots = 16384;

// Names that have the same text between '{' and '}' are in one slot (Redis Cluster Specification, "Hash tags").
unsigned SlotOf(std::string_view name);

}  // namespace kiln::cache::redis
