// SPDX-License-Identifier: Apache-2.0
//
// For tests only: Redis servers of our own on loopback ports, gone afterwards.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/redis/cluster.h"
#include "cache/testing.h"

namespace kiln::cache::redis::testing {

class RealClock final : public Clock {
 public:
  WallTime WallNow() const override { return std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now()); }
  SteadyTime SteadyNow() const override { return std::chrono::steady_clock::now(); }
};

// Debian's package redis-tools brings the server under another name, which does what its first argument says.
inline std::string ServerProgram() {
  for (const char* path : {"/usr/bin/redis-server", "/usr/local/bin/redis-server", "/usr/bin/redis-check-rdb"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  return {};
}

#define KILN_NEEDS_REDIS()                                                                                      \
  if (::kiln::cache::redis::testing::ServerProgram().empty()) {                                                 \
    GTEST_SKIP() << "NOT TESTED: there is no redis-server here; deploy/install-deps installs it (redis-tools)"; \
  }                                                                                                             \
  static_assert(true)

inline bool Eventually(const std::function<bool()>& holds, std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  const RealClock clock;
  for (const SteadyTime until = clock.SteadyNow() + patience; clock.SteadyNow() < until;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // between looks
  }
  return holds();
}

// A port that nobody listens on, for a server that binds it later. It is below those that connections get (Linux: from 32768 on), which could
// take it meanwhile; processes begin at places of their own, and no process gets one twice.
inline std::uint16_t FreePort() {
  constexpr unsigned kFirst = 10000, kPorts = 22000, kOfProcess = 64;
  static std::atomic<unsigned> next = static_cast<unsigned>(::getpid()) * kOfProcess;
  for (;;) {
    const auto port = static_cast<std::uint16_t>(kFirst + next++ % kPorts);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool free = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (free) return port;
  }
}

inline pid_t Spawn(const std::string& program, std::vector<std::string> words, const std::filesystem::path& output) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = -1;
  if (::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

class Server {
 public:
  explicit Server(std::vector<std::string> more = {}) : port_(FreePort()), more_(std::move(more)) { Start(); }
  ~Server() { Kill(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void Start() {
    std::vector<std::string> words = {"redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory_.path().string()};
    if (std::ranges::find(more_, "--tls-port") == more_.end()) words.insert(words.end(), {"--port", std::to_string(port_)});
    for (const std::string& word : more_) words.push_back(word == "PORT" ? std::to_string(port_) : word);
    pid_ = Spawn(ServerProgram(), words, directory_ / "log");
  }
  void Kill() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    Signal(SIGCONT);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void Signal(int which) const { ::kill(pid_, which); }

  std::uint16_t port() const { return port_; }
  HostPort at() const { return {"127.0.0.1", port_}; }

  // What the server says to that; nothing where it cannot be asked.
  std::optional<Reply> Ask(std::initializer_list<std::string_view> words) const {
    static const RealClock clock;
    static const Dialer dialer{clock, nullptr, {}};
    const SteadyTime deadline = clock.SteadyNow() + std::chrono::seconds(5);
    auto connection = Connection::Open(at(), *Resolve(at(), false), dialer, deadline);
    if (!connection || !(*connection)->Send(Format(words), deadline)) return std::nullopt;
    auto reply = (*connection)->Receive(deadline);
    if (!reply) return std::nullopt;
    return std::move(*reply);
  }
  bool Answers() const {
    const auto reply = Ask({"PING"});
    return reply && !reply->IsError("LOADING");
  }

 private:
  cache::testing::TemporaryDirectory directory_;
  const std::uint16_t port_;
  const std::vector<std::string> more_;
  pid_t pid_ = -1;
};

// Three masters, and a replica of each.
class Servers {
 public:
  static constexpr std::size_t kMasters = 3;

  Servers() {
    for (std::size_t i = 0; i < 2 * kMasters; ++i) {
      servers_.push_back(std::make_unique<Server>(std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-port", std::to_string(FreePort()),
                                                                           "--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0",
                                                                           "--cluster-require-full-coverage", "no", "--repl-diskless-sync", "no",
                                                                           "--repl-ping-replica-period", "1"}));
    }
    bool formed = true;
    for (const auto& server : servers_) formed = formed && Eventually([&] { return server->Answers(); });
    if (formed) Form();
  }

  // Whether all say that all slots are served, and all replicas follow.
  bool ready() const {
    return Eventually([this] { return WholeNow(); }, std::chrono::seconds(40));
  }

  Server& operator[](std::size_t i) { return *servers_[i]; }
  Server& master_of(unsigned slot) { return *servers_[slot * kMasters / kSlots]; }
  std::size_t size() const { return servers_.size(); }
  std::vector<HostPort> addresses() const {
    std::vector<HostPort> all;
    for (const auto& server : servers_) all.push_back(server->at());
    return all;
  }

 private:
  static unsigned FirstSlot(std::size_t master) { return static_cast<unsigned>((master * kSlots + kMasters - 1) / kMasters); }

  void Form() {
    for (std::size_t i = 0; i < kMasters; ++i) {
      servers_[i]->Ask({"CLUSTER", "ADDSLOTSRANGE", std::to_string(FirstSlot(i)), std::to_string(FirstSlot(i + 1) - 1)});
      servers_[i]->Ask({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    }
    for (std::size_t i = 1; i < servers_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j)
        servers_[j]->Ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[i]->port()), BusPort(*servers_[i])});
    }
    for (std::size_t i = 0; i < kMasters; ++i) {
      const std::string id = servers_[i]->Ask({"CLUSTER", "MYID"})->text;
      Eventually([&] {
        const auto reply = servers_[kMasters + i]->Ask({"CLUSTER", "REPLICATE", id});
        return reply && reply->text == "OK";
      });
    }
  }
  static std::string BusPort(const Server& server) { return server.Ask({"CONFIG", "GET", "cluster-port"})->items[1].text; }

  bool WholeNow() const {
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      const auto info = servers_[i]->Ask({"CLUSTER", "INFO"});
      if (!info || !info->text.contains("cluster_state:ok") || !info->text.contains("cluster_known_nodes:6")) return false;
      const auto slots = servers_[i]->Ask({"CLUSTER", "SLOTS"});
      if (!slots || slots->items.size() != kMasters) return false;
      for (const Reply& range : slots->items) {
        if (range.items.size() != 4) return false;
      }
      if (i < kMasters) continue;
      const auto link = servers_[i]->Ask({"INFO", "replication"});
      if (!link || !link->text.contains("master_link_status:up")) return false;
    }
    return true;
  }

  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace kiln::cache::redis::testing
