// SPDX-License-Identifier: Apache-2.0
#include "cache/outside/host_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kiln::cache {
namespace {

std::optional<std::uint16_t> ParsePort(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

}  // namespace

std::string HostPort::ToText() const { return host.contains(':') ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port); }

bool IsHost(std::string_view text) {
  constexpr std::size_t kLongest = 255;  // RFC 1035, 2.3.4
  const auto may_be_in_it = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || std::string_view(".-_:%").contains(c);
  };
  return !text.empty() && text.size() <= kLongest && std::ranges::all_of(text, may_be_in_it);
}

std::optional<HostPort> ParseHostPort(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto port = ParsePort(text.substr(colon + 1));
  if (!port || !IsHost(host)) return std::nullopt;
  return HostPort{std::string(host), *port};
}

}  // namespace kiln::cache
