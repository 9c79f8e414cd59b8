// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace kiln::cache::redis {
namespace {

// CRC-16 with the polynomial 0x1021 and no reflection (XMODEM).
std::uint16_t Crc16(std::string_view bytes) {
  unsigned crc = 0;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned>(static_cast<unsigned char>(byte)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000u) != 0 ? (crc << 1) ^ 0x1021u : crc << 1;
  }
  return static_cast<std::uint16_t>(crc & 0xffffu);
}

}  // namespace

std::expected<StoreAddress, std::string> ParseStoreAddress(std::string_view text) {
  StoreAddress address;
  std::string_view rest = text;
  if (rest.starts_with("rediss://")) address.tls = true;
  else if (!rest.starts_with("redis://")) return std::unexpected(fmt::format("\"{}\" does not begin with redis:// or rediss://", text));
  rest.remove_prefix(rest.find("//") + 2);
  if (rest.contains('@')) return std::unexpected("an address holds no user and no password: name a file of them with --cluster-credentials");
  for (;;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto server = ParseHostPort(rest.substr(0, comma));
    if (!server) return std::unexpected(fmt::format("\"{}\" is not HOST:PORT", rest.substr(0, comma)));
    address.servers.push_back(*server);
    if (comma == rest.size()) return address;
    rest.remove_prefix(comma + 1);
  }
}

unsigned SlotOf(std::string_view name) {
  const std::size_t open = name.find('{');
  if (open != std::string_view::npos) {
    const std::size_t close = name.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) name = name.substr(open + 1, close - open - 1);
  }
  return Crc16(name) % kSlots;
}

}  // namespace kiln::cache::redis
