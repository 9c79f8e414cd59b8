// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::cache {

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

}  // namespace kiln::cache
