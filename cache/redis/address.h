// SPDX-License-Identifier: Apache-2.0
//
// Where the servers of a cluster store are, and in which slot of it a name is.
#pragma once

#include <compare>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::cache::redis {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;

  std::string ToText() const;  // an address of IPv6 in brackets
  auto operator<=>(const HostPort&) const = default;
};

// Whether it is written like a name or an address. "?" is none, nor is what nobody could look up.
bool IsHost(std::string_view text);

// "HOST:PORT", "[ADDRESS]:PORT", or as servers write them, an address of IPv6 without brackets.
std::optional<HostPort> ParseHostPort(std::string_view text);

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
