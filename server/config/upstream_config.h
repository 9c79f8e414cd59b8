// SPDX-License-Identifier: Apache-2.0
//
// Another kilnd that this one asks, as the settings name it (server/upstream).
#pragma once

#include <chrono>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>

#include "clients/common/endpoint.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kiln::server {

struct UpstreamConfig {
  std::optional<Endpoint> endpoint;   // nothing: it asks nobody
  std::filesystem::path ca;           // PEM roots of the certificate that it shows; empty: the system's
  std::filesystem::path certificate;  // PEM chain that this host shows it; empty: none
  std::filesystem::path key;          // PEM
  std::filesystem::path tokens;       // which token is whose (tenant_tokens.h); empty: only the tenant `default` asks, without one
  std::chrono::milliseconds timeout{50};
};

// `address` gets what --upstream says, for FinishUpstream.
void AddUpstreamOptions(CLI::App& app, UpstreamConfig& config, std::string& address);
std::expected<void, std::string> FinishUpstream(const std::string& address, std::chrono::milliseconds timeout, UpstreamConfig& config);

}  // namespace kiln::server
