// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <initializer_list>
#include <string>
#include <vector>

#include "server/config/config.h"

namespace kiln::server {

// A Unix socket has no TLS: what flags or the file say of it there is refused. The environment may name certificates all the same, because
// its variables are also those of clients, for other hosts.
std::expected<void, std::string> RefuseTlsOfSocket(const Config& config, std::initializer_list<std::vector<std::string>> places);

}  // namespace kiln::server
