// SPDX-License-Identifier: Apache-2.0
//
// The file of --access: who is whom, beyond the bearer tokens. TOML:
//
//   [[user]]                   # of the Unix socket
//   uid = 1001                 # or "*": everybody without a row
//   tenant = "alice"
//   scopes = ["read", "compile", "run"]
//
//   [[certificate]]            # of TLS clients (--tls-client-ca)
//   name = "ci.example.com"    # the common name, else the first alternative name; or "*"
//   tenant = "ci"
//   scopes = ["read", "compile"]
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::server {

struct Grant {
  std::string tenant;
  std::uint8_t scopes = 0;
};

struct UserRule {
  std::optional<unsigned> uid;  // empty: everybody
  Grant grant;
};

struct CertificateRule {
  std::optional<std::string> name;  // empty: everybody
  Grant grant;
};

struct AccessFile {
  std::vector<UserRule> users;
  std::vector<CertificateRule> certificates;
};

// The error names the line, and says what the key may be.
std::expected<AccessFile, std::string> ParseAccessFile(std::string_view text);

}  // namespace kiln::server
