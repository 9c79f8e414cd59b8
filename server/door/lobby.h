// SPDX-License-Identifier: Apache-2.0
//
// The TCP connections whose client is not known yet: no call on them has authenticated. TLS alone identifies nobody, so half a handshake,
// an idle connection and refused calls all count the same. These connections have limits of their own, besides --connection-memory:
//
//   so many connections       one more takes the place of the oldest of the address that has the most (of IPv6: the network of 64 bits)
//   so many bytes received    beyond that, whoever has sent the most goes
//   so many refused calls     of one connection, whose answers nobody may be reading
//   so long
//
// A connection over a limit is cut off. A legitimate client loses nothing: it connects again, it never waits for a place here, and its
// connection leaves the lobby with the first call that is let in.
//
// Also the directory of all connections over TCP: which descriptor a call's peer has.
//
// Threads. Any; the listener's looks from time to time. The lobby holds a duplicate descriptor of each connection. gRPC may close its own
// at any time, and its number may then belong to another connection, which must not be shut down.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cache/mutex.h"
#include "clients/common/unique_fd.h"

namespace kiln::server {

class Lobby {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    std::function<std::uint64_t(int connection)> received;  // BytesReceived
    std::size_t connections = 256;
    std::uint64_t bytes = std::uint64_t{16} << 20;
    std::size_t refusals = 200;
    std::chrono::milliseconds patience = std::chrono::seconds(20);
  };
  explicit Lobby(Options options) : options_(std::move(options)) {}

  // A connection that was accepted, before gRPC has it. `peer` as "192.0.2.1:5000" or "[2001:db8::1]:5000".
  void Enter(int connection, UniqueFd duplicate, const std::string& peer, Time now);

  // The descriptor of a call's connection; `peer` as gRPC writes it. -1: the lobby does not know it.
  int ConnectionOf(std::string_view peer) const;

  // A call of this connection was let in, or refused since nobody knows its caller.
  void Admit(int connection);
  void NoteRefusal(int connection);

  // Cuts off connections that have been here too long or have sent too much, and forgets those that have closed.
  void Look(Time now);

  bool empty() const { return waiting() == 0; }
  std::size_t waiting() const;

  // The address of a peer without its port; of IPv6 the first 64 bits.
  static std::string NetworkOf(std::string_view peer);

 private:
  struct Guest {
    UniqueFd duplicate;
    std::string network;
    Time entered;
    std::uint64_t received_before = 0;
    std::size_t refusals = 0;
  };
  using Guests = std::map<int, Guest>;

  void MakeRoom() KILN_REQUIRES(mutex_);
  void ForgetWhoHasGone() KILN_REQUIRES(mutex_);
  void CutOff(Guests::iterator guest) KILN_REQUIRES(mutex_);
  std::uint64_t BytesOf(const Guests::value_type& guest) const;

  const Options options_;
  mutable cache::Mutex mutex_;
  Guests guests_ KILN_GUARDED_BY(mutex_);                                 // by connection
  std::unordered_map<std::string, int> numbers_ KILN_GUARDED_BY(mutex_);  // of peers
  std::unordered_map<int, std::string> peers_ KILN_GUARDED_BY(mutex_);    // the last that had the number
};

}  // namespace kiln::server
