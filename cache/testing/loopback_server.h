// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a server on the loopback interface, with a thread for each connection.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "cache/mutex.h"
#include "cache/outside/host_port.h"

namespace kiln::cache::testing {

class LoopbackServer {
 public:
  // Called in the thread of a connection, from Begin on; it returns when the connection ends, and the server closes the socket at its own end.
  using Speak = std::function<void(int fd)>;

  // `port` 0: any that is free.
  explicit LoopbackServer(std::uint16_t port = 0) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0) std::abort();
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~LoopbackServer() { End(); }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  // Connections are taken from here on.
  void Begin(Speak speak) {
    speak_ = std::move(speak);
    acceptor_ = std::thread([this] { Accept(); });
  }
  // Ends every connection and waits for its thread. What `speak` uses lives until then, so its owner calls this first.
  void End() {
    if (stopping_.exchange(true)) return;
    if (!acceptor_.joinable()) return static_cast<void>(::close(listener_));
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      MutexLock lock(mutex_);
      for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& speaker : speakers_) speaker.join();
    MutexLock lock(mutex_);
    for (const int fd : sockets_) ::close(fd);
  }

  HostPort at() const { return {"127.0.0.1", port_}; }
  int connections() const { return connections_; }
  bool stopping() const { return stopping_; }

 private:
  void Accept() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      ++connections_;
      MutexLock lock(mutex_);
      sockets_.push_back(fd);
      speakers_.emplace_back([this, fd] { speak_(fd); });
    }
  }

  Speak speak_;
  const int listener_;
  std::uint16_t port_ = 0;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  std::vector<int> sockets_ KILN_GUARDED_BY(mutex_);
  std::list<std::thread> speakers_;  // of the acceptor, and of nobody once that has ended
  std::thread acceptor_;
};

}  // namespace kiln::cache::testing
