// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/node.h"

#include <fmt/format.h>

#include <utility>

#include "cache/try.h"

namespace kiln::cache::redis {

std::expected<SocketAddress, Error> Node::Address(bool may_wait) {
  {
    MutexLock lock(mutex_);
    if (address_ && !may_wait) return *address_;
  }
  KILN_ASSIGN_OR_RETURN(const SocketAddress address, Resolve(at_, may_wait));
  MutexLock lock(mutex_);
  address_ = address;
  return address;
}

std::expected<std::unique_ptr<Connection>, Error> Node::Dial(SteadyTime deadline, bool may_wait) {
  KILN_ASSIGN_OR_RETURN(const SocketAddress address, Address(may_wait));
  return Connection::Open(at_, address, dialer_, deadline);
}

std::expected<std::unique_ptr<Connection>, Error> Node::Take(SteadyTime deadline) {
  for (;;) {
    std::unique_ptr<Connection> connection;
    {
      MutexLock lock(mutex_);
      if (idle_.empty()) break;
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    if (connection->quiet()) return connection;
  }
  return Dial(deadline, false);
}

void Node::GiveBack(std::unique_ptr<Connection> connection) {
  breaker_.NoteAnswer(dialer_.clock.SteadyNow());
  MutexLock lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

bool Node::LeaveAlone() {
  if (!breaker_.LeaveAlone(dialer_.clock.SteadyNow())) return false;
  std::vector<std::unique_ptr<Connection>> closed;
  MutexLock lock(mutex_);
  closed.swap(idle_);
  return true;
}

std::expected<void, Error> Node::Probe(std::chrono::milliseconds timeout) {
  constexpr int kToConnect = 4;  // times as long: TLS takes some messages, and a process that wakes up some time
  const auto ask = [&]() -> std::expected<std::unique_ptr<Connection>, Error> {
    KILN_ASSIGN_OR_RETURN(auto connection, Dial(dialer_.clock.SteadyNow() + timeout * kToConnect, true));
    const SteadyTime deadline = dialer_.clock.SteadyNow() + timeout;
    KILN_RETURN_IF_ERROR(connection->Send(Format({"PING"}), deadline));
    KILN_ASSIGN_OR_RETURN(const Reply reply, connection->Receive(deadline));
    if (reply.IsError("LOADING") || reply.IsError("MASTERDOWN")) return Fail(ErrorCode::kUnreachable, reply.text);
    return connection;
  };
  auto connection = ask();
  if (connection) {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(*connection));
  }
  breaker_.NoteProbe(connection.has_value(), dialer_.clock.SteadyNow());
  if (!connection) return Fail(connection.error().code, fmt::format("{}: {}", at_.ToText(), connection.error().message));
  return {};
}

}  // namespace kiln::cache::redis
