// SPDX-License-Identifier: Apache-2.0
//
// Files that an operator names: what gives rights, keys and certificates.
#pragma once

#include <expected>
#include <filesystem>
#include <optional>
#include <string>

namespace kiln::server {

// The whole of it; empty where there is no such file. The error says what is wrong: it cannot be read to its end, or others than
// its owner can write it.
std::expected<std::optional<std::string>, std::string> ReadGuarded(const std::filesystem::path& path);

// The same of a file that others may write, and that must be there. A FIFO or a device is refused: it could be waited for forever.
std::expected<std::string, std::string> ReadOrdinary(const std::filesystem::path& path);

}  // namespace kiln::server
