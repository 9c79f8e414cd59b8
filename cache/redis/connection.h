// SPDX-License-Identifier: Apache-2.0
//
// One connection to one server: a socket that never blocks, with a deadline for everything, TLS where it is asked for.
#pragma once

#include <sys/socket.h>

#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cache/clock.h"
#include "cache/error.h"
#include "cache/redis/address.h"
#include "cache/redis/protocol.h"
#include "cache/redis/tls.h"

namespace kiln::cache::redis {

// An address as a socket takes it.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

// A number in place of a name costs nothing. A name asks the system's resolver, which has its own patience, so only `may_wait` asks it.
std::expected<SocketAddress, Error> Resolve(const HostPort& at, bool may_wait);

struct Credentials {
  std::string user;  // empty: the server's default user
  std::string password;
};

// How connections are made. All may be called from any thread.
struct Dialer {
  const Clock& clock;
  std::shared_ptr<const Tls> tls;  // null: none
  // Asked for each connection, so that a password may change; nothing: none is needed. Empty: the same.
  std::function<std::expected<std::optional<Credentials>, std::string>()> credentials;
  std::size_t max_reply = std::size_t{64} << 20;
};

// Of one thread at a time. After an error it is of no use any more. Every error is kUnreachable, or kRefused where the server refuses the
// user.
class Connection {
 public:
  // Connects, and says who we are. Replicas may be read.
  static std::expected<std::unique_ptr<Connection>, Error> Open(const HostPort& at, const SocketAddress& address, const Dialer& dialer,
                                                                SteadyTime deadline);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::expected<void, Error> Send(std::string_view bytes, SteadyTime deadline);
  std::expected<Reply, Error> Receive(SteadyTime deadline);

  // The replies that have come; waits for none.
  std::expected<std::optional<Reply>, Error> ReceiveIfThere();

  // Whether the server has not closed it, nor said what nobody asked for.
  bool quiet() const;

  int fd() const { return fd_; }

 private:
  Connection(int fd, const Dialer& dialer);
  std::expected<void, Error> Greet(SteadyTime deadline);
  std::expected<void, Error> Shake(SteadyTime deadline);
  std::expected<void, Error> SendRaw(std::string_view bytes, SteadyTime deadline);
  // What has come; an empty text: nothing yet.
  std::expected<std::string, Error> Read();
  std::expected<void, Error> AwaitReady(short events, SteadyTime deadline) const;

  const int fd_;
  const Dialer& dialer_;
  std::unique_ptr<TlsSession> tls_;
  ReplyReader reader_;
};

}  // namespace kiln::cache::redis
