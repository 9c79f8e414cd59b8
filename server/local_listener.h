// SPDX-License-Identifier: Apache-2.0
//
// kilnd's Unix socket: bound, accepted and handed to gRPC here, so that a call's peer is known. A call that came through it has
// the peer "fd:N", N being the descriptor of its connection, which stays open as long as the call lives. kilnd's own user and root have a
// server of their own: they could end kilnd anyway, so nothing of theirs is measured, and nobody else's memory is theirs.
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

#include "server/unique_fd.h"

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

// The descriptor of a call's connection, if it came through the socket.
std::optional<int> LocalConnection(std::string_view peer);

// Who is at the other end of a call's connection: user, group and process as the kernel recorded them at connect(2). Nothing for
// the peer of another kind of connection.
std::optional<ucred> LocalPeer(std::string_view peer);

}  // namespace kiln::server
