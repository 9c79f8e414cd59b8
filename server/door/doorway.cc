// SPDX-License-Identifier: Apache-2.0
#include "server/door/doorway.h"

#include "server/access/local_peer.h"
#include "server/door/call_watch.h"

namespace kiln::server {

std::expected<Caller, Failure> Doorway::Enter(grpc::CallbackServerContext& context, std::string_view method) const {
  auto caller = gate_.Enter(context, method);
  NoteCaller(context, caller);
  TellLobby(context, caller);
  return caller;
}

std::expected<Caller, Failure> Doorway::Identify(const grpc::CallbackServerContext& context) const {
  auto caller = gate_.Identify(context);
  TellLobby(context, caller);
  return caller;
}

void Doorway::TellLobby(const grpc::CallbackServerContext& context, const std::expected<Caller, Failure>& caller) const {
  if (lobby_ == nullptr) return;
  const bool unknown = !caller && caller.error().kind == Failure::Kind::kUnauthenticated;
  const int connection = ConnectionOf(context);
  unknown ? lobby_->NoteRefusal(connection) : lobby_->Admit(connection);
}

int Doorway::ConnectionOf(const grpc::CallbackServerContext& context) const {
  const std::string peer = context.peer();
  if (const auto local = LocalConnection(peer)) return *local;
  return lobby_ == nullptr ? -1 : lobby_->ConnectionOf(peer);
}

}  // namespace kiln::server
