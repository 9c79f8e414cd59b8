// SPDX-License-Identifier: Apache-2.0
//
// Files that an operator names: settings, what gives rights, keys and certificates, logs.
#pragma once

#include <expected>
#include <filesystem>
#include <optional>
#include <string>

#include "clients/common/unique_fd.h"

namespace kiln::server {

// The whole of it; empty where there is no such file. The error says what is wrong: it cannot be read to its end, or others than
// its owner can write it.
std::expected<std::optional<std::string>, std::string> ReadGuarded(const std::filesystem::path& path);

// The same of a file that others may write, and that must be there. A FIFO or a device is refused: it could be waited for forever.
std::expected<std::string, std::string> ReadOrdinary(const std::filesystem::path& path);

// Why no log can be kept there; empty where one can, or where there is nothing yet. A named FIFO is refused: its reader could be waited for
// forever. A pipe that /dev/stdout stands for is none.
std::string WhyNoLog(const std::filesystem::path& path);
// The same of a file that is renamed at some size.
std::string WhyNotRenamed(const std::filesystem::path& path);
// To write at its end; it is made if there is none. The error says why not, without the path.
std::expected<UniqueFd, std::string> OpenLog(const std::filesystem::path& path);

}  // namespace kiln::server
