// SPDX-License-Identifier: Apache-2.0
//
// One server as its users see it: connections to it, and whether it is left alone.
//
// A server that fails once, by an error or by silence, is left alone until it has answered a probe (cache/outside/breaker.h). Probes come from
// the cluster's own thread, so nobody's request pays for them.
#pragma once

#include <chrono>
#include <expected>
#include <memory>
#include <optional>
#include <vector>

#include "cache/mutex.h"
#include "cache/outside/breaker.h"
#include "cache/redis/address.h"
#include "cache/redis/connection.h"

namespace kiln::cache::redis {

// All members may be called from any thread.
class Node {
 public:
  // `usable`: the cluster says that it is there. Else it must be probed first.
  Node(HostPort at, const Dialer& dialer, bool usable) : at_(std::move(at)), dialer_(dialer), breaker_(usable) {}

  const HostPort& at() const { return at_; }
  bool usable() const { return breaker_.usable(); }

  // A connection that nobody uses, or a new one.
  std::expected<std::unique_ptr<Connection>, Error> Take(SteadyTime deadline);

  // It answered: the connection may be used again.
  void GiveBack(std::unique_ptr<Connection> connection);

  // It failed: it is left alone from now on. Whether it was in use until then.
  bool LeaveAlone();

  // Left alone where nothing was heard of it since then: so that whoever has just waited for another server in vain does not wait for it, too.
  void Doubt(SteadyTime since) { breaker_.Doubt(since); }

  // When it is to be probed; nothing while it is in use.
  std::optional<SteadyTime> probe_due() const { return breaker_.probe_due(); }
  std::size_t failures() const { return breaker_.failures(); }

  // Whether it connects, and then answers within `timeout`. Waits for names to be resolved, too.
  std::expected<void, Error> Probe(std::chrono::milliseconds timeout);

 private:
  static constexpr std::size_t kMostIdle = 16;

  std::expected<SocketAddress, Error> Address(bool may_wait);
  std::expected<std::unique_ptr<Connection>, Error> Dial(SteadyTime deadline, bool may_wait);

  const HostPort at_;
  const Dialer& dialer_;
  Breaker breaker_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ KILN_GUARDED_BY(mutex_);
  std::optional<SocketAddress> address_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::cache::redis
