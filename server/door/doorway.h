// SPDX-License-Identifier: Apache-2.0
//
// Checks that a call passes at its headers: the gate, and, for callers other than kilnd's own user, the limits on memory for what they
// send.
#pragma once

#include <expected>
#include <string_view>

#include <grpcpp/server_context.h>

#include "server/access/caller.h"
#include "server/access/gate.h"
#include "server/door/lobby.h"
#include "server/door/message_room.h"
#include "server/reply/failure.h"

namespace kiln::server {

class Doorway {
 public:
  // Without a MessageRoom, messages are not counted and unary calls begin with the whole message. Without a Lobby, all connections are
  // local.
  Doorway(const Gate& gate, MessageRoom* room, Lobby* lobby) : gate_(gate), room_(room), lobby_(lobby) {}

  // Returns the caller if they may call this method, and notes them for the call's log line.
  std::expected<Caller, Failure> Enter(grpc::CallbackServerContext& context, std::string_view method) const;

  // Returns the caller, whatever they may do.
  std::expected<Caller, Failure> Identify(const grpc::CallbackServerContext& context) const;

  const Gate& gate() const { return gate_; }
  MessageRoom* room() const { return room_; }

  // The call's descriptor, for the room; -1: none that is known.
  int ConnectionOf(const grpc::CallbackServerContext& context) const;

 private:
  void TellLobby(const grpc::CallbackServerContext& context, const std::expected<Caller, Failure>& caller) const;

  const Gate& gate_;
  MessageRoom* const room_;
  Lobby* const lobby_;
};

}  // namespace kiln::server
