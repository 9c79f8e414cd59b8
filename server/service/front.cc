// SPDX-License-Identifier: Apache-2.0
#include "server/service/front.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/access/tls.h"
#include "server/door/received_bytes.h"

namespace kiln::server {
namespace {

constexpr std::chrono::milliseconds kKeepaliveAnswer{10'000}, kHandshake{10'000};
constexpr std::uint64_t kOfTheLobby = std::uint64_t{64} << 20;

// Twice the MessageRoom's memory, so that gRPC never ends calls by itself: its slices of memory may be half empty.
std::uint64_t QuotaOfOthers(const Config& config) { return 2 * config.connection_memory_bytes + kOfTheLobby; }

void Configure(grpc::ServerBuilder& builder, const Config& config, std::uint64_t quota) {
  builder.SetResourceQuota(grpc::ResourceQuota("kilnd").Resize(quota));
  // Beyond this size gRPC ends a call before kilnd sees it, and cannot name the setting; up to it, KilnService::Takes does.
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::min<std::uint64_t>(2 * config.max_message_bytes, std::numeric_limits<int>::max())));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kHandshake.count()));
  // A client that does not answer in time is gone, with or without a call: what it waited for is cancelled.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(config.keepalive.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(std::min(config.keepalive, kKeepaliveAnswer).count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 30'000);
}

// Windows that do not grow: until its message is read a call brings 64 KiB at most (MessageRoom::kFirstWindow).
void KeepWindows(grpc::ServerBuilder& builder) { builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0); }

template <class Door>
bool Start(grpc::ServerBuilder& builder, Door& door, Journal& journal, AcceptedCalls& accepted, const cache::Clock& clock) {
  builder.RegisterService(&door.kiln);
  builder.RegisterService(&door.health);
  door.unserved = WatchCalls(builder, journal, accepted, clock);
  door.server = builder.BuildAndStart();
  return door.server != nullptr;
}

std::unexpected<std::string> CannotServe() { return std::unexpected(std::string("gRPC's server does not start")); }

}  // namespace

Front::Front(const Config& config)
    : room_({.capacity = config.connection_memory_bytes, .received = BytesReceived}), lobby_({.received = BytesReceived}) {}

std::expected<std::unique_ptr<Front>, std::string> Front::Open(const Parts& parts, UniqueFd inherited) {
  std::unique_ptr<Front> front(new Front(parts.config));
  const bool local = parts.config.endpoint.socket || inherited;
  auto listening = local ? front->ListenLocally(parts, std::move(inherited)) : front->ListenOnTcp(parts);
  if (!listening) return std::unexpected(std::move(listening.error()));
  return front;
}

std::expected<void, std::string> Front::ListenLocally(const Parts& parts, UniqueFd inherited) {
  std::expected<UniqueFd, std::string> listening = std::move(inherited);
  if (parts.config.endpoint.socket) listening = LocalListener::Bind(*parts.config.endpoint.socket, parts.config.socket_mode);
  if (!listening) return std::unexpected(std::move(listening.error()));
  own_ = std::make_unique<Door>(parts, nullptr, nullptr, health_);
  others_ = std::make_unique<Door>(parts, &room_, nullptr, health_);
  grpc::ServerBuilder own, others;
  Configure(own, parts.config, parts.config.connection_memory_bytes);
  Configure(others, parts.config, QuotaOfOthers(parts.config));
  KeepWindows(others);
  if (!Start(own, *own_, parts.journal, parts.accepted, parts.clock) || !Start(others, *others_, parts.journal, parts.accepted, parts.clock))
    return CannotServe();
  local_ = std::make_unique<LocalListener>(std::move(*listening), *own_->server, *others_->server);
  address_ = parts.config.endpoint.address;
  return {};
}

std::expected<void, std::string> Front::ListenOnTcp(const Parts& parts) {
  const Config& config = parts.config;
  auto credentials = TlsCredentials({config.tls_certificate, config.tls_key, config.tls_client_ca});
  if (!credentials) return std::unexpected(std::move(credentials.error()));
  auto bound = TcpListener::Bind(config.endpoint.address);
  if (!bound) return std::unexpected(std::move(bound.error()));
  const std::string& given = config.endpoint.address;
  address_ = given.substr(0, given.rfind(':') + 1) + std::to_string(bound->port);
  others_ = std::make_unique<Door>(parts, &room_, &lobby_, health_);
  grpc::ServerBuilder builder;
  Configure(builder, config, QuotaOfOthers(config));
  KeepWindows(builder);
  acceptor_ =
      builder.experimental().AddExternalConnectionAcceptor(grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, *credentials);
  if (!Start(builder, *others_, parts.journal, parts.accepted, parts.clock)) return CannotServe();
  tcp_ = std::make_unique<TcpListener>(std::move(*bound), *acceptor_, lobby_, parts.clock);
  return {};
}

void Front::StopAccepting() {
  local_.reset();
  tcp_.reset();
}

void Front::Shutdown(std::chrono::system_clock::time_point deadline) {
  StopAccepting();
  for (Door* door : {own_.get(), others_.get()}) {
    if (door != nullptr) door->server->Shutdown(deadline);
  }
  for (Door* door : {own_.get(), others_.get()}) {
    if (door != nullptr) door->server->Wait();
  }
}

Front::~Front() {
  StopAccepting();
  for (Door* door : {own_.get(), others_.get()}) {
    if (door != nullptr && door->server) door->server->Shutdown(std::chrono::system_clock::now());
    if (door != nullptr) door->server.reset();
  }
}

}  // namespace kiln::server
