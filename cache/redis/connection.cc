// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/connection.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "cache/try.h"

namespace kiln::cache::redis {
namespace {

std::unexpected<Error> Unreachable(std::string what) { return Fail(ErrorCode::kUnreachable, std::move(what)); }
std::unexpected<Error> Failed(std::string_view call) { return Unreachable(fmt::format("{}: {}", call, std::generic_category().message(errno))); }

constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;

}  // namespace

std::expected<SocketAddress, Error> Resolve(const HostPort& at, bool may_wait) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (may_wait ? 0 : AI_NUMERICHOST);
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found);
  if (failed != 0) return Unreachable(fmt::format("{} cannot be resolved: {}", at.host, gai_strerror(failed)));
  SocketAddress address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

Connection::Connection(int fd, const Dialer& dialer) : fd_(fd), dialer_(dialer), reader_(dialer.max_reply) {}

Connection::~Connection() { ::close(fd_); }

std::expected<void, Error> Connection::AwaitReady(short events, SteadyTime deadline) const {
  for (;;) {
    const auto left = std::max(SteadyTime::duration(0), deadline - dialer_.clock.SteadyNow());
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec wait{seconds.count(), std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds).count()};
    pollfd watched{fd_, events, 0};
    const int ready = ::ppoll(&watched, 1, &wait, nullptr);
    if (ready > 0) return {};
    if (ready == 0) return Unreachable("no answer in time");
    if (errno != EINTR) return Failed("poll");
  }
}

std::expected<std::unique_ptr<Connection>, Error> Connection::Open(const HostPort& at, const SocketAddress& address, const Dialer& dialer,
                                                                   SteadyTime deadline) {
  const int fd = ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed("socket");
  std::unique_ptr<Connection> connection(new Connection(fd, dialer));
  const int at_once = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0) {
    if (errno != EINPROGRESS) return Failed("connect");
    KILN_RETURN_IF_ERROR(connection->AwaitReady(POLLOUT, deadline));
    int failed = 0;
    socklen_t size = sizeof failed;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
    if (failed != 0) return Unreachable(fmt::format("connect: {}", std::generic_category().message(failed)));
  }
  if (dialer.tls) {
    connection->tls_ = std::make_unique<TlsSession>(*dialer.tls, at.host);
    KILN_RETURN_IF_ERROR(connection->Shake(deadline));
  }
  KILN_RETURN_IF_ERROR(connection->Greet(deadline));
  return connection;
}

std::expected<void, Error> Connection::Shake(SteadyTime deadline) {
  for (;;) {
    const auto done = tls_->Shake();
    if (const std::string bytes = tls_->TakeToSend(); !bytes.empty()) KILN_RETURN_IF_ERROR(SendRaw(bytes, deadline));
    if (!done) return std::unexpected(done.error());
    if (*done) return {};
    KILN_RETURN_IF_ERROR(AwaitReady(POLLIN, deadline));
    std::array<char, 16384> part;
    const ssize_t got = ::recv(fd_, part.data(), part.size(), 0);
    if (got == 0) return Unreachable("the server closed the connection before TLS was agreed on; does it speak TLS?");
    if (got > 0) tls_->Came({part.data(), static_cast<std::size_t>(got)});
    else if (errno != EAGAIN && errno != EINTR) return Failed("recv");
  }
}

// A server that is no replica answers READONLY with an error, which says nothing.
std::expected<void, Error> Connection::Greet(SteadyTime deadline) {
  std::string greeting;
  bool says_who = false;
  if (dialer_.credentials) {
    const auto credentials = dialer_.credentials();
    if (!credentials) return Unreachable(credentials.error());
    if (*credentials) {
      says_who = true;
      const Credentials& who = **credentials;
      greeting += who.user.empty() ? Format({"AUTH", who.password}) : Format({"AUTH", who.user, who.password});
    }
  }
  greeting += Format({"READONLY"});
  KILN_RETURN_IF_ERROR(Send(greeting, deadline));
  if (says_who) {
    KILN_ASSIGN_OR_RETURN(const Reply let_in, Receive(deadline));
    if (let_in.is_error()) return Fail(ErrorCode::kRefused, fmt::format("the server lets us not in (--cluster-credentials): {}", let_in.text));
  }
  KILN_ASSIGN_OR_RETURN(const Reply reads, Receive(deadline));
  if (reads.IsError("NOAUTH")) return Fail(ErrorCode::kRefused, "the server wants a password: name a file with it with --cluster-credentials");
  return {};
}

std::expected<void, Error> Connection::SendRaw(std::string_view bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    else if (errno == EAGAIN) KILN_RETURN_IF_ERROR(AwaitReady(POLLOUT, deadline));
    else if (errno != EINTR) return Failed("send");
  }
  return {};
}

std::expected<void, Error> Connection::Send(std::string_view bytes, SteadyTime deadline) {
  if (!tls_) return SendRaw(bytes, deadline);
  KILN_RETURN_IF_ERROR(tls_->Encrypt(bytes));
  return SendRaw(tls_->TakeToSend(), deadline);
}

std::expected<std::string, Error> Connection::Read() {
  std::string bytes(kReadAtOnce, '\0');
  const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
  if (got == 0) return Unreachable("the server closed the connection");
  if (got < 0 && errno != EAGAIN && errno != EINTR) return Failed("recv");
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (!tls_ || bytes.empty()) return bytes;
  tls_->Came(bytes);
  std::string plain;
  KILN_RETURN_IF_ERROR(tls_->Decrypt(plain));
  return plain;
}

std::expected<std::optional<Reply>, Error> Connection::ReceiveIfThere() {
  for (;;) {
    KILN_ASSIGN_OR_RETURN(auto reply, reader_.Next());
    if (reply) return reply;
    KILN_ASSIGN_OR_RETURN(const std::string bytes, Read());
    if (bytes.empty()) return std::nullopt;
    KILN_RETURN_IF_ERROR(reader_.Feed(bytes));
  }
}

std::expected<Reply, Error> Connection::Receive(SteadyTime deadline) {
  for (;;) {
    KILN_ASSIGN_OR_RETURN(auto reply, ReceiveIfThere());
    if (reply) return std::move(*reply);
    KILN_RETURN_IF_ERROR(AwaitReady(POLLIN, deadline));
  }
}

bool Connection::quiet() const {
  if (!reader_.empty()) return false;
  char byte;
  return ::recv(fd_, &byte, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EINTR);
}

}  // namespace kiln::cache::redis
