// SPDX-License-Identifier: Apache-2.0
//
// With which token the upstream kilnd is asked for whom.
//
// Tenants stay apart on the way, by the upstream kilnd's own rules: each of them presents a token of its own, with which it gets what the
// upstream kilnd keeps for it and nothing else, whatever digests it names. So a tenant must have the same name on both hosts; it is part of
// the name of an entry, and of what its seal covers, and an entry that was sealed for another tenant is refused here. For a tenant without a
// token nobody is asked: its programs are compiled here, if there are workers.
//
// The file has lines "TENANT TOKEN". A token "-" is none: the upstream kilnd knows this host by its certificate, or by its user at a Unix
// socket, and must take it for that tenant. Without a file that holds for the tenant `default`, and for no other.
#pragma once

#include <expected>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kiln::server {

using TenantTokens = std::map<std::string, std::string, std::less<>>;  // an empty token: none is presented

TenantTokens TokensWithoutFile();

// The error names the line, and nothing of what is secret.
std::expected<TenantTokens, std::string> ParseTenantTokens(std::string_view text);

// A file that others can read is refused.
std::expected<TenantTokens, std::string> ReadTenantTokens(const std::filesystem::path& path);

}  // namespace kiln::server
