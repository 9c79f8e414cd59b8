// SPDX-License-Identifier: Apache-2.0
#include "server/upstream/tenant_tokens.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/reply/tenant_key.h"
#include "server/system/guarded_file.h"

namespace kiln::server {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::string_view NextWord(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kSpace));
  line.remove_prefix(word.size());
  return word;
}

// gRPC ends the process over metadata with other characters.
bool IsHeaderText(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

TenantTokens TokensWithoutFile() { return {{std::string(kDefaultTenant), ""}}; }

std::expected<TenantTokens, std::string> ParseTenantTokens(std::string_view text) {
  TenantTokens tokens;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, std::min(text.find('#'), end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view tenant = NextWord(line), token = NextWord(line);
    if (tenant.empty()) continue;
    if (token.empty() || !NextWord(line).empty() || !IsHeaderText(token)) {
      return std::unexpected(fmt::format("line {}: a line has a tenant and its token, or \"-\" where it needs none", number));
    }
    if (!tokens.emplace(tenant, token == "-" ? "" : token).second) {
      return std::unexpected(fmt::format("line {}: the tenant {} has a token already", number, tenant));
    }
  }
  if (tokens.empty()) return std::unexpected("no line names a tenant: nobody could ask the upstream kilnd for anything");
  return tokens;
}

std::expected<TenantTokens, std::string> ReadTenantTokens(const std::filesystem::path& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) == 0 && (about.st_mode & 077) != 0) {
    return std::unexpected(fmt::format("others can read {} (--upstream-tokens): chmod 600 it", path.string()));
  }
  const auto text = ReadGuarded(path);
  if (!text) return std::unexpected(text.error() + " (--upstream-tokens)");
  if (!*text) return std::unexpected(fmt::format("there is no {} (--upstream-tokens)", path.string()));
  auto tokens = ParseTenantTokens(**text);
  if (!tokens) return std::unexpected(fmt::format("{}, {}", path.string(), tokens.error()));
  return tokens;
}

}  // namespace kiln::server
