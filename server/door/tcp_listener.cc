// SPDX-License-Identifier: Apache-2.0
#include "server/door/tcp_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace kiln::server {
namespace {

constexpr std::chrono::milliseconds kPauseWithoutDescriptors{50}, kBetweenLooks{20};

using Addresses = std::unique_ptr<addrinfo, decltype([](addrinfo* list) { ::freeaddrinfo(list); })>;

std::expected<Addresses, std::string> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) return std::unexpected(fmt::format("cannot listen on {}: {}", host, ::gai_strerror(error)));
  return Addresses(list);
}

void Set(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

in_port_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// `port`: that of the addresses before, or 0. Nothing where the address cannot be had.
std::optional<UniqueFd> Listen(const addrinfo& at, int& port) {
  sockaddr_storage address{};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  if (port != 0) PortOf(address) = htons(static_cast<std::uint16_t>(port));
  UniqueFd listening(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listening) return std::nullopt;
  Set(listening.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ai_family == AF_INET6) Set(listening.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  socklen_t size = at.ai_addrlen;
  if (::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(listening.get(), SOMAXCONN) != 0 ||
      ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return std::nullopt;
  }
  port = ntohs(PortOf(address));
  return listening;
}

// "192.0.2.1:5000", also of one who came by IPv4 to a socket for both.
std::string Text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, host.data(), host.size());
    return fmt::format("{}:{}", host.data(), ntohs(four.sin_port));
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    ::inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, host.data(), host.size());
    return fmt::format("{}:{}", host.data(), ntohs(six.sin6_port));
  }
  ::inet_ntop(AF_INET6, &six.sin6_addr, host.data(), host.size());
  return fmt::format("[{}]:{}", host.data(), ntohs(six.sin6_port));
}

}  // namespace

std::expected<TcpListener::Bound, std::string> TcpListener::Bind(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "0.0.0.0") {  // every address, also of IPv6 where this host has that
    if (auto both = Bind(fmt::format("[::]{}", address.substr(colon)))) return both;
  }
  const auto addresses = Resolve(std::string(host), std::string(address.substr(colon + 1)));
  if (!addresses) return std::unexpected(addresses.error());
  Bound bound;
  int error = 0;
  for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
    auto listening = Listen(*at, bound.port);
    if (listening) {
      bound.sockets.push_back(std::move(*listening));
    } else {
      error = errno;
    }
  }
  // A name may have an address that this host does not; a port that somebody has on one of them is refused.
  if (!bound.sockets.empty() && error != EADDRINUSE) return bound;
  return std::unexpected(fmt::format("cannot listen on {}: {}; is the port taken?", address, std::strerror(error)));
}

TcpListener::TcpListener(Bound bound, grpc::experimental::ExternalConnectionAcceptor& acceptor, Lobby& lobby, const cache::Clock& clock)
    : bound_(std::move(bound)), acceptor_(acceptor), lobby_(lobby), clock_(clock), thread_([this] { Run(); }) {}

TcpListener::~TcpListener() {
  stop_.Set();
  thread_.join();
}

void TcpListener::Run() {
  std::vector<pollfd> fds = {{stop_.fd(), POLLIN, 0}};
  for (const UniqueFd& socket : bound_.sockets) fds.push_back({socket.get(), POLLIN, 0});
  auto looked = clock_.SteadyNow();
  for (;;) {
    const int wait = lobby_.empty() ? -1 : static_cast<int>(kBetweenLooks.count());
    if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    bool starved = false;
    for (std::size_t i = 1; i < fds.size(); ++i) starved |= fds[i].revents != 0 && !AcceptOne(fds[i].fd);
    // No descriptor is free: leave the connection in the backlog until one is.
    if (starved) ::poll(fds.data(), 1, static_cast<int>(kPauseWithoutDescriptors.count()));
    const auto now = clock_.SteadyNow();
    if (now - looked < kBetweenLooks) continue;
    lobby_.Look(now);
    looked = now;
  }
}

bool TcpListener::AcceptOne(int listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  UniqueFd accepted(::accept4(listening, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
  Set(accepted.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  UniqueFd duplicate(::fcntl(accepted.get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate) return false;
  lobby_.Enter(accepted.get(), std::move(duplicate), Text(address), clock_.SteadyNow());
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listening;
  parameters.fd = accepted.Release();
  acceptor_.HandleNewConnection(&parameters);
  return true;
}

}  // namespace kiln::server
