// SPDX-License-Identifier: Apache-2.0
//
// Bearer tokens: what a file holds of them, and the file. A token is "kiln_" and 256 random bits; the file holds its SHA-256, so
// that who reads the file cannot use it (random bits need no slow hash). One line a token:
//
//   NAME TENANT SCOPE[,SCOPE…] sha256:HEX EXPIRY          EXPIRY: never, or 2027-01-31T12:00:00Z
//
// Empty lines and lines that begin with '#' are skipped.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"
#include "clients/common/unique_fd.h"
#include "server/access/caller.h"

namespace kiln::server {

using WallSeconds = std::chrono::sys_seconds;

struct Token {
  std::string name;
  std::string tenant;
  std::uint8_t scopes = 0;
  cache::Digest hash;
  std::optional<WallSeconds> expires;

  bool IsOver(std::chrono::system_clock::time_point now) const {
    return expires && std::chrono::floor<std::chrono::seconds>(now) >= *expires;  // in seconds: nanoseconds end in the year 2262
  }
};

// The error names the line.
std::expected<std::vector<Token>, std::string> ParseTokens(std::string_view text);
std::string Format(const Token& token);  // a line without its end
std::string FormatExpiry(const Token& token);

// A file that does not exist holds none. One that others than its owner can write is refused.
std::expected<std::vector<Token>, std::string> ReadTokens(const std::filesystem::path& path);
std::expected<void, std::string> WriteTokens(const std::filesystem::path& path, const std::vector<Token>& tokens);

// The lock of a change of the tokens, from reading to writing. A second change waits for the first.
std::expected<UniqueFd, std::string> LockTokens(const std::filesystem::path& path);

cache::Digest HashToken(std::string_view secret);

// The token with that secret, or null. The comparison takes the same time for every secret.
const Token* FindToken(const std::vector<Token>& tokens, std::string_view secret);

// A secret for a new token, from the kernel's random numbers.
std::string NewSecret();

// "read,compile"; the error names the scope that there is not.
std::expected<std::uint8_t, std::string> ParseScopes(std::string_view text);
std::string FormatScopes(std::uint8_t scopes);

// A name of a token or tenant: letters, digits and . _ - @, at most 64.
bool IsName(std::string_view text);

}  // namespace kiln::server
