// SPDX-License-Identifier: Apache-2.0
//
// Where kilnd listens, and that nobody else does already.
#pragma once

#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "clients/common/unique_fd.h"

namespace kiln {

struct Endpoint {
  std::string address;                          // as gRPC takes it
  std::optional<std::filesystem::path> socket;  // of a Unix endpoint
};

// "unix:PATH" or "HOST:PORT". The error says what is wrong with it.
std::expected<Endpoint, std::string> ParseEndpoint(std::string_view text);

// Why no Unix socket can have this path; empty: one can.
std::string TooLongForASocket(std::string_view path);

// $XDG_RUNTIME_DIR/kiln.sock, or /run/kiln/kiln.sock for root, or /tmp/kiln-UID/kiln.sock.
std::string DefaultListen(const char* runtime_dir, unsigned uid);

// Why a client must not use a socket in this folder, which lies where everybody can create folders; empty if it may. A missing folder is
// created, before somebody else does so.
std::string DistrustOf(const std::filesystem::path& folder, unsigned uid);

// Holds a Unix endpoint for this process: a lock file beside the socket, the socket removed if nobody listens on it. The error
// tells who has it. Empty for TCP.
std::expected<UniqueFd, std::string> Claim(const Endpoint& endpoint);

}  // namespace kiln
