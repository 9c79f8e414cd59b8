// SPDX-License-Identifier: Apache-2.0
#include "server/config/upstream_config.h"

#include <utility>

#include <CLI/CLI.hpp>

namespace kiln::server {

void AddUpstreamOptions(CLI::App& app, UpstreamConfig& config, std::string& address) {
  app.add_option("--upstream", address,
                 "HOST:PORT (TLS) or unix:PATH of another kilnd that is asked for results before they are compiled, and, with --workers=0, "
                 "to compile them");
  app.add_option("--upstream-ca", config.ca, "PEM roots of the upstream kilnd's certificate (the system's)");
  app.add_option("--upstream-cert", config.certificate, "PEM certificate chain that this kilnd shows the upstream kilnd");
  app.add_option("--upstream-key", config.key, "PEM private key of --upstream-cert");
  app.add_option("--upstream-tokens", config.tokens,
                 "file with lines \"TENANT TOKEN\": with which bearer token the upstream kilnd is asked for whom");
}

std::expected<void, std::string> FinishUpstream(const std::string& address, std::chrono::milliseconds timeout, UpstreamConfig& config) {
  config.timeout = timeout;
  const bool tls = !config.ca.empty() || !config.certificate.empty() || !config.key.empty();
  if (address.empty()) {
    if (!tls && config.tokens.empty()) return {};
    return std::unexpected("--upstream-ca, --upstream-cert, --upstream-key and --upstream-tokens belong to --upstream, which is not given");
  }
  auto endpoint = ParseEndpoint(address);
  if (!endpoint) return std::unexpected("--upstream: " + endpoint.error());
  if (endpoint->socket && tls) {
    return std::unexpected("--upstream: a Unix socket has no TLS; leave out --upstream-ca, --upstream-cert and --upstream-key");
  }
  if (config.certificate.empty() != config.key.empty()) return std::unexpected("--upstream-cert and --upstream-key belong together");
  config.endpoint = std::move(*endpoint);
  return {};
}

}  // namespace kiln::server
