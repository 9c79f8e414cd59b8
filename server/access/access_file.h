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
//
//   [[tenant]]                 # its quotas; what is not there has no limit
//   name = "ci"                # or "*": each tenant without a row
//   compile-seconds = 3600     # of the workers, an hour
//   gpu-seconds = 600          # of the devices, an hour
//   store-bytes = 2147483648
//   requests = 64              # in flight; a manifest is one
//
// A tenant bounds what `read`, `compile`, `tune` and `run` reach: its own results. It does not bound `admin`, which is the scope of
// whoever operates the host: the Cache calls list, verify, evict and export the results of every tenant, and Stats counts them all.
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

// What a tenant may use up (quotas.h).
struct TenantLimits {
  std::optional<double> compile_seconds;  // an hour
  std::optional<double> gpu_seconds;      // an hour
  std::optional<std::uint64_t> store_bytes;
  std::optional<std::uint32_t> requests;  // in flight
};

struct TenantRule {
  std::optional<std::string> name;  // empty: each tenant without a row
  TenantLimits limits;
};

struct AccessFile {
  std::vector<UserRule> users;
  std::vector<CertificateRule> certificates;
  std::vector<TenantRule> tenants;

  TenantLimits LimitsOf(std::string_view tenant) const;
};

// The error names the line, and says what the key may be.
std::expected<AccessFile, std::string> ParseAccessFile(std::string_view text);

}  // namespace kiln::server
