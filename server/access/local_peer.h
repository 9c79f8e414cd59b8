// SPDX-License-Identifier: Apache-2.0
//
// Who is at the other end of a connection through the Unix socket.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string_view>

namespace kiln::server {

// The descriptor of a call's connection, if it came through the socket.
std::optional<int> LocalConnection(std::string_view peer);

// The peer of a call's connection: user, group and process as the kernel recorded them at connect(2). nullopt for other kinds of
// connection.
std::optional<ucred> LocalPeer(std::string_view peer);
std::optional<ucred> LocalPeer(int connection);

}  // namespace kiln::server
