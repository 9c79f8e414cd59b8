// SPDX-License-Identifier: Apache-2.0
//
// kilnd's doors: gRPC's servers, the methods behind them, and where they listen.
//
//   own      on a Unix socket: connections of kilnd's own user and of root
//   others   everybody else there, and everybody over TCP: their messages are counted from the headers on (message_room.h), and over TCP
//            those of whom nobody knows yet have a room of their own (lobby.h)
//
// Each server has its own memory for what gRPC has received, so neither can use up the other's. On the second server the limits of
// message_room.h and lobby.h take effect before gRPC's own, which would end arbitrary calls.
//
// Threads. gRPC's, and those of the rooms and of the listener.
#pragma once

#include <chrono>
#include <expected>
#include <memory>
#include <optional>
#include <string>

#include <grpcpp/grpcpp.h>

#include "clients/common/unique_fd.h"
#include "server/config/config.h"
#include "server/door/call_watch.h"
#include "server/door/doorway.h"
#include "server/door/local_listener.h"
#include "server/door/tcp_listener.h"
#include "server/service/health.h"
#include "server/service/service.h"
#include "server/telemetry/journal.h"

namespace kiln::server {

class Front {
 public:
  // What is referred to outlives it.
  struct Parts {
    const Config& config;
    const Gate& gate;
    Journal& journal;
    AcceptedCalls& accepted;
    KilnService::Parts service;
    const cache::Clock& clock;
  };
  // Serves from now on; `inherited` is a listening Unix socket, if there is one.
  static std::expected<std::unique_ptr<Front>, std::string> Open(const Parts& parts, UniqueFd inherited);
  ~Front();

  const std::string& address() const { return address_; }  // with the port that was chosen

  void SayNotServing() { health_.Set(false); }
  void StopAccepting();
  // Ends what is under way at that time.
  void Shutdown(std::chrono::system_clock::time_point deadline);

 private:
  struct Door {
    Door(const Parts& parts, MessageRoom* room, Lobby* lobby, HealthState& health)
        : doorway(parts.gate, room, lobby), kiln(parts.service, doorway), health(doorway, health) {}
    const Doorway doorway;
    KilnService kiln;
    HealthService health;
    std::unique_ptr<grpc::CallbackGenericService> unserved;
    std::unique_ptr<grpc::Server> server;
  };

  explicit Front(const Config& config);
  std::expected<void, std::string> ListenLocally(const Parts& parts, UniqueFd inherited);
  std::expected<void, std::string> ListenOnTcp(const Parts& parts);

  HealthState health_;
  MessageRoom room_;
  Lobby lobby_;
  std::unique_ptr<Door> own_, others_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<LocalListener> local_;
  std::unique_ptr<TcpListener> tcp_;
  std::string address_;
};

}  // namespace kiln::server
