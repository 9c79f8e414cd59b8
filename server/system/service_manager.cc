// SPDX-License-Identifier: Apache-2.0
#include "server/system/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include <fmt/format.h>

namespace kiln::server {
namespace {

constexpr int kFirstInherited = 3;  // SD_LISTEN_FDS_START

int OptionOf(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

}  // namespace

void ServiceManager::Tell(std::string_view state) const {
  sockaddr_un address{};
  if (notify_socket.empty() || notify_socket.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  notify_socket.copy(address.sun_path, sizeof address.sun_path - 1);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // the abstract namespace
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_socket.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
}

std::expected<UniqueFd, std::string> TakeListener(const ServiceManager& manager) {
  if (manager.inherited_sockets == 0) return UniqueFd();
  if (manager.inherited_sockets > 1) {
    return std::unexpected(
        fmt::format("systemd handed over {} sockets and kilnd serves on one; leave a single ListenStream= in the "
                    "socket unit",
                    manager.inherited_sockets));
  }
  UniqueFd listener(kFirstInherited);
  if (OptionOf(listener.get(), SO_DOMAIN) != AF_UNIX || OptionOf(listener.get(), SO_TYPE) != SOCK_STREAM ||
      OptionOf(listener.get(), SO_ACCEPTCONN) != 1) {
    return std::unexpected(
        "the socket that systemd handed over is no listening Unix stream socket; use ListenStream=/PATH and "
        "Accept=no, and --listen for TCP");
  }
  ::fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(listener.get(), F_SETFL, O_NONBLOCK | ::fcntl(listener.get(), F_GETFL));
  return listener;
}

std::string AddressOf(const UniqueFd& listener) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  address.sun_path[sizeof address.sun_path - 1] = '\0';
  return fmt::format("unix:{}", address.sun_path);
}

}  // namespace kiln::server
