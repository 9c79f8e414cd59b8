// SPDX-License-Identifier: Apache-2.0
#include "server/access/local_peer.h"

#include <charconv>
#include <system_error>

namespace kiln::server {

std::optional<int> LocalConnection(std::string_view peer) {
  constexpr std::string_view kPrefix = "fd:";
  if (!peer.starts_with(kPrefix)) return std::nullopt;
  int fd = -1;
  const auto [end, error] = std::from_chars(peer.data() + kPrefix.size(), peer.data() + peer.size(), fd);
  if (error != std::errc() || end != peer.data() + peer.size()) return std::nullopt;
  return fd;
}

std::optional<ucred> LocalPeer(std::string_view peer) {
  const auto fd = LocalConnection(peer);
  return fd ? LocalPeer(*fd) : std::nullopt;
}

std::optional<ucred> LocalPeer(int connection) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return std::nullopt;
  return who;
}

}  // namespace kiln::server
