// SPDX-License-Identifier: Apache-2.0
//
// Threads are CivetWeb's: a few, each with one request at a time. A client that sends slowly is cut off after kPatience.
#include "server/telemetry/monitor.h"

#include <array>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include <civetweb.h>
#include <fmt/format.h>

namespace kiln::server {
namespace {

constexpr const char* kThreads = "3";
constexpr const char* kPatience = "5000";  // milliseconds

int Reply(mg_connection* connection, int status, const char* type, std::string_view body) {
  const std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", status,
                  status == 200 ? "OK" : "Service Unavailable", type, body.size());
  mg_write(connection, head.data(), head.size());
  if (std::string_view(mg_get_request_info(connection)->request_method) != "HEAD") mg_write(connection, body.data(), body.size());
  return status;
}

bool IsRead(mg_connection* connection) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  return method == "GET" || method == "HEAD";
}

int Refuse(mg_connection* connection) {
  mg_send_http_error(connection, 405, "%s", "only GET and HEAD");
  return 405;
}

int ServeMetrics(mg_connection* connection, void* source) {
  if (!IsRead(connection)) return Refuse(connection);
  return Reply(connection, 200, "text/plain; version=0.0.4; charset=utf-8", (*static_cast<std::function<std::string()>*>(source))());
}

int ServeProbe(mg_connection* connection, void* source) {
  if (!IsRead(connection)) return Refuse(connection);
  const Probe probe = (*static_cast<std::function<Probe()>*>(source))();
  return Reply(connection, probe.ok ? 200 : 503, "text/plain; charset=utf-8", probe.text);
}

// CivetWeb takes addresses, not names.
std::string PortOption(const std::string& address) {
  constexpr std::string_view kLocal = "localhost:";
  return address.starts_with(kLocal) ? "127.0.0.1:" + address.substr(kLocal.size()) : address;
}

}  // namespace

struct Monitor::Server {
  explicit Server(Sources given) : sources(std::move(given)) { mg_init_library(0); }
  ~Server() {
    if (context != nullptr) Stop();
    mg_exit_library();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // CivetWeb checks whether it shall stop only when a connection comes or every two seconds, so this opens one.
  void Stop() {
    const std::jthread knock([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::array<char, 100> error;
      if (mg_connection* connection = mg_connect_client(host.c_str(), port, 0, error.data(), error.size())) {
        mg_close_connection(connection);
      }
    });
    mg_stop(context);
  }

  Sources sources;
  std::string host;
  int port = 0;
  mg_context* context = nullptr;
};

Monitor::Monitor(std::unique_ptr<Server> server, std::string address) : server_(std::move(server)), address_(std::move(address)) {}
Monitor::~Monitor() = default;

std::expected<std::unique_ptr<Monitor>, std::string> Monitor::Start(const std::string& address, Sources sources) {
  auto server = std::make_unique<Server>(std::move(sources));
  const std::string option = PortOption(address);
  std::array<const char*, 9> options = {"listening_ports",          option.c_str(), "num_threads", kThreads, "request_timeout_ms", kPatience,
                                        "enable_directory_listing", "no",           nullptr};
  const mg_callbacks callbacks{};
  server->context = mg_start(&callbacks, nullptr, options.data());
  if (server->context == nullptr) {
    return std::unexpected(fmt::format("cannot listen on {} for metrics; is the port taken? Choose another with --metrics-listen", address));
  }
  mg_set_request_handler(server->context, "/metrics$", ServeMetrics, &server->sources.metrics);
  mg_set_request_handler(server->context, "/healthz$", ServeProbe, &server->sources.health);
  mg_set_request_handler(server->context, "/readyz$", ServeProbe, &server->sources.readiness);
  mg_server_port bound{};
  mg_get_server_ports(server->context, 1, &bound);
  server->port = bound.port;
  server->host = option.substr(0, option.rfind(':'));
  return std::unique_ptr<Monitor>(new Monitor(std::move(server), fmt::format("{}:{}", address.substr(0, address.rfind(':')), bound.port)));
}

}  // namespace kiln::server
