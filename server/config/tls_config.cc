// SPDX-License-Identifier: Apache-2.0
#include "server/config/tls_config.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/config/config_report.h"

namespace kiln::server {

std::expected<void, std::string> RefuseTlsOfSocket(const Config& config, std::initializer_list<std::vector<std::string>> places) {
  if (!config.endpoint.socket) return {};
  for (const auto& [name, value] :
       {std::pair{"tls-cert", &config.tls_certificate}, std::pair{"tls-key", &config.tls_key}, std::pair{"tls-client-ca", &config.tls_client_ca}}) {
    if (value->empty() || std::ranges::none_of(places, [&](const auto& words) { return Names(words, name); })) continue;
    return std::unexpected(
        fmt::format("--{}: {} is a Unix socket, which has no TLS; leave it out, or give --listen HOST:PORT", name, config.endpoint.address));
  }
  return {};
}

}  // namespace kiln::server
