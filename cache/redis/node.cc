// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/node.h"

#include <fmt/format.h>

#include <algorithm>
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
  MutexLock lock(mutex_);
  heard_ = dialer_.clock.SteadyNow();
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

bool Node::LeaveAlone() {
  std::vector<std::unique_ptr<Connection>> closed;
  MutexLock lock(mutex_);
  if (!usable_) return false;
  const SteadyTime now = dialer_.clock.SteadyNow();
  usable_ = false;
  failures_ = now - revived_ < kRelapse ? failures_ + 1 : 1;
  const std::size_t doublings = std::min<std::size_t>(failures_ - 1, 10);
  probe_ = now + (failures_ == 1 ? std::chrono::milliseconds(0) : std::min(kLongestPause, kFirstPause * (1 << doublings)));
  closed.swap(idle_);
  return true;
}

void Node::Doubt(SteadyTime since) {
  MutexLock lock(mutex_);
  if (!usable_ || heard_ >= since) return;
  usable_ = false;
  probe_ = SteadyTime();
}

std::optional<SteadyTime> Node::probe_due() const {
  MutexLock lock(mutex_);
  if (usable_) return std::nullopt;
  return probe_;
}

std::size_t Node::failures() const {
  MutexLock lock(mutex_);
  return failures_;
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
  MutexLock lock(mutex_);
  const SteadyTime now = dialer_.clock.SteadyNow();
  if (!connection) {
    probe_ = now + std::min(kLongestPause, kFirstPause * (1 << std::min<std::size_t>(failures_, 10)));
    ++failures_;
    return Fail(connection.error().code, fmt::format("{}: {}", at_.ToText(), connection.error().message));
  }
  heard_ = revived_ = now;
  usable_ = true;
  idle_.push_back(std::move(*connection));
  return {};
}

}  // namespace kiln::cache::redis
