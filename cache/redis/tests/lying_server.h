// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a server that answers what a test wants, and speaks like one that holds everything otherwise.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/mutex.h"
#include "cache/redis/address.h"
#include "cache/redis/protocol.h"

namespace kiln::cache::redis::testing {

class LyingServer {
 public:
  // The bytes that it sends for a command, given its words; nothing: an answer that is no lie. Called from several threads.
  using Answer = std::function<std::optional<std::string>(const std::vector<std::string>& words)>;

  explicit LyingServer(Answer answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0) std::abort();
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~LyingServer() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      MutexLock lock(mutex_);
      for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& speaker : speakers_) speaker.join();
    for (const int fd : sockets_) ::close(fd);
  }
  LyingServer(const LyingServer&) = delete;
  LyingServer& operator=(const LyingServer&) = delete;

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
      speakers_.emplace_back([this, fd] { Speak(fd); });
    }
  }
  void Speak(int fd) const {
    ReplyReader reader(std::size_t{64} << 20);
    std::string bytes(65536, '\0');
    for (;;) {
      auto command = reader.Next();
      if (!command) return;
      if (*command) {
        if (!Send(fd, AnswerTo(**command))) return;
        continue;
      }
      const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
      if (got <= 0 || !reader.Feed({bytes.data(), static_cast<std::size_t>(got)})) return;
    }
  }
  std::string AnswerTo(const Reply& command) const {
    std::vector<std::string> words;
    for (const Reply& word : command.items) words.push_back(word.text);
    if (auto answer = answer_(words)) return std::move(*answer);
    if (words[0] == "CLUSTER") return "-ERR This instance has cluster support disabled\r\n";
    if (words[0] == "PING") return "+PONG\r\n";
    if (words[0] == "HMGET") return "*2\r\n$-1\r\n$-1\r\n";
    if (words[0] == "PTTL") return ":-2\r\n";
    return "+OK\r\n";
  }
  static bool Send(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  const Answer answer_;
  const int listener_;
  std::uint16_t port_ = 0;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  std::vector<int> sockets_ KILN_GUARDED_BY(mutex_);
  std::list<std::thread> speakers_;
  std::thread acceptor_;
};

}  // namespace kiln::cache::redis::testing
