// SPDX-License-Identifier: Apache-2.0
//
// Memory for messages that are on their way (--connection-memory), shared by tenants. gRPC holds the received part of a message until the
// rest arrives, and the client decides when that is: half-sent messages would take memory from everybody else.
//
// gRPC does not tell how much a connection holds, so this class uses an upper bound. A call waits here from its headers until its message
// is whole. While it waits, everything that its connection receives counts as held for it, plus a fixed amount for each waiting call. The
// bound exceeds the true value by what other, finished messages of the connection brought meanwhile; it is never too low, whatever the
// client does.
//
// The tenant that holds the most may hold four fifths of its own and the free memory together. Beyond that it loses the call that has
// waited longest on its largest connection, then the next. Other tenants never lose a call for this and always find a fifth free.
//
// Threads. Any thread may enter and leave. A thread of this class checks every 5 ms while calls wait, ends those over the limit, and sleeps
// when no call has waited for a while. It calls `refuse` under the lock, so that no call is refused once Came has returned. gRPC may call
// back from there, so the lock is recursive.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "cache/mutex.h"
#include "server/reply/failure.h"

namespace kiln::server {

class MessageRoom {
 public:
  using Refuse = std::function<void(const Failure&)>;                 // on any thread; must not block
  static constexpr std::size_t kOfACall = std::size_t{16} << 10;      // what gRPC and kilnd hold for a call without a message
  static constexpr std::size_t kFirstWindow = std::size_t{64} << 10;  // what may have come of a message before its call could enter

  struct Options {
    std::size_t capacity;
    std::function<std::uint64_t(int connection)> received;  // BytesReceived
    bool looks = true;                                      // by a thread of its own
  };
  explicit MessageRoom(Options options);
  ~MessageRoom();
  MessageRoom(const MessageRoom&) = delete;
  MessageRoom& operator=(const MessageRoom&) = delete;

  // A call of a tenant, message after message. The room outlives it; without one nothing is counted. One thread at a time.
  class Waiter {
   public:
    Waiter(MessageRoom* room, int connection, std::string tenant) : room_(room), connection_(connection), tenant_(std::move(tenant)) {}
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter() { Came(); }

    // Before the message is read. `refuse` is called at most once, and not after Came.
    void Wait(Refuse refuse);
    // The message is there, or none will be. False: the call was refused meanwhile.
    bool Came();

   private:
    friend class MessageRoom;
    MessageRoom* const room_;
    const int connection_;
    const std::string tenant_;
    // Guarded by the room's mutex.
    bool waits_ = false;
    bool refused_ = false;
    Refuse refuse_;
    std::uint64_t began_ = 0;  // what the connection had received
    std::list<Waiter*>::iterator at_;
  };

  // Ends whoever must go.
  void Look();

  std::size_t held() const;

 private:
  struct Connection {
    std::list<Waiter*> waiting;  // the oldest first
    std::uint64_t empty_at = 0;  // what it had received when nobody waited
    std::size_t held = 0;        // as Look has found it
  };
  using Connections = std::unordered_map<int, Connection>;

  void Leave(Waiter& waiter) KILN_REQUIRES(mutex_);
  std::size_t HeldBy(int number, const Connection& connection) const KILN_REQUIRES(mutex_);
  std::map<std::string, std::size_t> Measure() KILN_REQUIRES(mutex_);
  bool EndOneOf(const std::string& tenant) KILN_REQUIRES(mutex_);
  Failure Refusal(const std::string& tenant) const;
  void Run();

  const Options options_;
  mutable cache::RecursiveMutex mutex_;  // which who is refused takes again
  cache::RecursiveCondVar entered_;
  Connections connections_ KILN_GUARDED_BY(mutex_);  // with nobody in it, it keeps empty_at
  std::size_t waiting_ KILN_GUARDED_BY(mutex_) = 0;
  bool sleeps_ KILN_GUARDED_BY(mutex_) = false;  // the thread, until somebody enters
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kiln::server
