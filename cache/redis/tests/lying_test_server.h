// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a server that answers what a test wants, and speaks like one that holds everything otherwise.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/redis/address.h"
#include "cache/redis/protocol.h"
#include "cache/testing/loopback_server.h"

namespace kiln::cache::redis::testing {

class LyingServer {
 public:
  // The bytes that it sends for a command, given its words; nothing: an answer that is no lie. Called from several threads.
  using Answer = std::function<std::optional<std::string>(const std::vector<std::string>& words)>;

  explicit LyingServer(Answer answer) : answer_(std::move(answer)) {
    server_.Begin([this](int fd) { Speak(fd); });
  }
  ~LyingServer() { server_.End(); }

  HostPort at() const { return server_.at(); }
  int connections() const { return server_.connections(); }
  bool stopping() const { return server_.stopping(); }

 private:
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
  cache::testing::LoopbackServer server_;
};

}  // namespace kiln::cache::redis::testing
