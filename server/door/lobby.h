// SPDX-License-Identifier: Apache-2.0
//
// The connections over TCP of whom nobody knows yet: no call of theirs has shown who makes it. TLS alone says nothing, so half a handshake,
// an idle connection and calls that are refused are all the same here. They have a room of their own, beside --connection-memory:
//
//   so many connections       one more takes the place of the oldest of the address that has the most (of IPv6: the network of 64 bits)
//   so many bytes received    beyond that, whoever has sent the most goes
//   so many refused calls     of one connection, whose answers nobody may be reading
//   so long
//
// Who goes is cut off. A client that is known by then, or comes again, loses nothing: it never waits for a place here, and its connection is
// out of this room with the first call that is let in.
//
// Also the directory of all connections over TCP: which descriptor a call's peer has.
//
// Threads. Any; the listener's looks from time to time. A connection here is held by a descriptor of its own, a duplicate, so that nobody
// else's is ever shut down: gRPC closes its own when it likes.
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

  // Of a call: its peer as gRPC writes it. -1: none of ours.
  int ConnectionOf(std::string_view peer) const;

  // A call of this connection was let in, or refused since nobody knows its caller.
  void Admit(int connection);
  void NoteRefusal(int connection);

  // Cuts off who has been here too long or has sent too much, and forgets who has gone.
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
  Guests guests_ KILN_GUARDED_BY(mutex_);  // by connection
  std::unordered_map<std::string, int> numbers_ KILN_GUARDED_BY(mutex_);  // of peers
  std::unordered_map<int, std::string> peers_ KILN_GUARDED_BY(mutex_);  // the last that had the number
};

}  // namespace kiln::server
