// SPDX-License-Identifier: Apache-2.0
#include "server/access/access_file.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "server/access/tokens.h"

namespace kiln::server {
namespace {

std::string At(const toml::node& node, std::string_view what) { return fmt::format("line {}: {}", node.source().begin.line, what); }

std::expected<Grant, std::string> ReadGrant(const toml::table& row) {
  Grant grant;
  grant.tenant = row["tenant"].value_or(std::string());
  if (!IsName(grant.tenant)) {
    return std::unexpected(At(row, "`tenant` is a name of at most 64 letters, digits and . _ - @"));
  }
  const toml::array* scopes = row["scopes"].as_array();
  std::string list;
  for (std::size_t i = 0; scopes != nullptr && i < scopes->size(); ++i) {
    list += (i == 0 ? "" : ",") + scopes->get(i)->value_or(std::string("?"));
  }
  const auto parsed = ParseScopes(list);
  if (!parsed) return std::unexpected(At(row, parsed.error()));
  grant.scopes = *parsed;
  return grant;
}

std::expected<UserRule, std::string> ReadUser(const toml::table& row) {
  UserRule rule;
  if (row["uid"].value<std::string>() != "*") {
    const auto uid = row["uid"].value_exact<std::int64_t>();  // the library's conversion of a float is undefined beyond its range
    if (!uid || *uid < 0 || *uid > 0xffff'fffe) return std::unexpected(At(row, "`uid` is a user's number, or \"*\""));
    rule.uid = static_cast<unsigned>(*uid);
  }
  auto grant = ReadGrant(row);
  if (!grant) return std::unexpected(std::move(grant.error()));
  rule.grant = std::move(*grant);
  return rule;
}

std::expected<CertificateRule, std::string> ReadCertificate(const toml::table& row) {
  CertificateRule rule;
  const auto name = row["name"].value<std::string>();
  if (!name || name->empty()) return std::unexpected(At(row, "`name` is a certificate's common name, or \"*\""));
  if (*name != "*") rule.name = *name;
  auto grant = ReadGrant(row);
  if (!grant) return std::unexpected(std::move(grant.error()));
  rule.grant = std::move(*grant);
  return rule;
}

// A number that is not negative; empty where the key is missing.
template <class Number>
std::expected<void, std::string> ReadLimit(const toml::table& row, const char* key, std::optional<Number>& out) {
  const toml::node* node = row.get(key);
  if (node == nullptr) return {};
  const auto number = node->value<double>();
  if (!number || !(*number >= 0) || *number > 9e15) return std::unexpected(At(*node, fmt::format("`{}` is a number", key)));
  out = static_cast<Number>(std::min<double>(*number, static_cast<double>(std::numeric_limits<Number>::max())));
  return {};
}

std::expected<TenantRule, std::string> ReadTenant(const toml::table& row) {
  TenantRule rule;
  const auto name = row["name"].value<std::string>();
  if (!name || name->empty()) return std::unexpected(At(row, "`name` is a tenant's, or \"*\""));
  if (*name != "*") rule.name = *name;
  TenantLimits& limits = rule.limits;
  for (const auto& read : {ReadLimit(row, "compile-seconds", limits.compile_seconds), ReadLimit(row, "gpu-seconds", limits.gpu_seconds),
                           ReadLimit(row, "store-bytes", limits.store_bytes), ReadLimit(row, "requests", limits.requests)}) {
    if (!read) return std::unexpected(read.error());
  }
  return rule;
}

// Each element of the array of tables `rows`, through `read`, into `out`; `known` are the keys a row may have.
template <class Rule, class Read>
std::expected<void, std::string> ReadRows(const toml::node& rows, std::initializer_list<std::string_view> known, Read read, std::vector<Rule>& out) {
  const toml::array* array = rows.as_array();
  if (array == nullptr) return std::unexpected(At(rows, "rows are written [[user]], [[certificate]] and [[tenant]]"));
  for (const toml::node& node : *array) {
    const toml::table* row = node.as_table();
    if (row == nullptr) return std::unexpected(At(node, "rows are written [[user]], [[certificate]] and [[tenant]]"));
    for (const auto& [key, value] : *row) {
      if (std::ranges::find(known, key.str()) == known.end()) {
        return std::unexpected(At(value, fmt::format("a row has no key {}; it has {}", key.str(), fmt::join(known, ", "))));
      }
    }
    auto rule = read(*row);
    if (!rule) return std::unexpected(std::move(rule.error()));
    out.push_back(std::move(*rule));
  }
  return {};
}

std::expected<toml::table, std::string> ParseToml(std::string_view text) {
  try {
    return toml::table(toml::parse(text));
  } catch (const toml::parse_error& error) {
    return std::unexpected(fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
}

}  // namespace

TenantLimits AccessFile::LimitsOf(std::string_view tenant) const {
  TenantLimits limits;
  for (const TenantRule& rule : tenants) {
    if (rule.name == tenant) return rule.limits;
    if (!rule.name) limits = rule.limits;
  }
  return limits;
}

std::expected<AccessFile, std::string> ParseAccessFile(std::string_view text) {
  const auto table = ParseToml(text);
  if (!table) return std::unexpected(table.error());
  AccessFile file;
  for (const auto& [key, value] : *table) {
    std::expected<void, std::string> read;
    if (key == "user") {
      read = ReadRows(value, {"uid", "tenant", "scopes"}, ReadUser, file.users);
    } else if (key == "certificate") {
      read = ReadRows(value, {"name", "tenant", "scopes"}, ReadCertificate, file.certificates);
    } else if (key == "tenant") {
      read = ReadRows(value, {"name", "compile-seconds", "gpu-seconds", "store-bytes", "requests"}, ReadTenant, file.tenants);
    } else {
      read = std::unexpected(At(value, fmt::format("there is no `{}`; there are [[user]], [[certificate]] and [[tenant]]", key.str())));
    }
    if (!read) return std::unexpected(std::move(read.error()));
  }
  return file;
}

}  // namespace kiln::server
