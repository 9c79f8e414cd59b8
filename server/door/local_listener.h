// SPDX-License-Identifier: Apache-2.0
//
// kilnd's Unix socket: bound, accepted and handed to gRPC here, so that a call's peer is known. A call that came through it has the peer
// "fd:N", N being the descriptor of its connection, which stays open as long as the call lives. kilnd's own user and root have a separate
// server: they could end kilnd anyway, so their messages are not measured, and they share no memory budget with others.
//
// Threads. One, which only accepts.
#pragma once

#include <sys/socket.h>

#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "clients/common/unique_fd.h"

namespace grpc {
class Server;
}

namespace kiln::server {

class LocalListener {
 public:
  // A listening socket at `path`, which must be free, with these permissions. The error says what to try.
  static std::expected<UniqueFd, std::string> Bind(const std::filesystem::path& path, unsigned mode);

  LocalListener(UniqueFd listening, grpc::Server& own, grpc::Server& others);
  ~LocalListener();  // accepts no more; what was accepted stays

 private:
  void Run();
  bool AcceptOne();

  UniqueFd listening_;
  UniqueFd stop_;
  grpc::Server& own_;
  grpc::Server& others_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kiln::server
