// SPDX-License-Identifier: Apache-2.0
//
// kilnd's TCP port: bound and accepted here and handed to gRPC, which does the TLS, so that connections whose client is not known yet have
// limits of their own (lobby.h, which says which of them are cut off).
//
// Threads. One, which accepts, and looks after the lobby while somebody is in it.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <grpcpp/server_builder.h>

#include "cache/clock.h"
#include "clients/common/unique_fd.h"
#include "server/door/lobby.h"
#include "server/system/wakeup.h"

namespace kiln::server {

class TcpListener {
 public:
  struct Bound {
    std::vector<UniqueFd> sockets;  // listening, one for each address that the host's name has
    int port = 0;
  };
  // `address` is "HOST:PORT", whose port may be 0. The error says what is wrong.
  static std::expected<Bound, std::string> Bind(std::string_view address);

  TcpListener(Bound bound, grpc::experimental::ExternalConnectionAcceptor& acceptor, Lobby& lobby, const cache::Clock& clock);
  ~TcpListener();  // accepts no more; what was accepted stays

 private:
  void Run();
  bool AcceptOne(int listening);

  const Bound bound_;
  grpc::experimental::ExternalConnectionAcceptor& acceptor_;
  Lobby& lobby_;
  const cache::Clock& clock_;
  Wakeup stop_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kiln::server
