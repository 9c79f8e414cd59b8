// SPDX-License-Identifier: Apache-2.0
#include "server/access/token_command.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "server/access/tokens.h"
#include "server/config/config.h"

namespace kiln::server {
namespace {

struct Arguments {
  std::string file;
  std::string name;
  std::string tenant = "default";
  std::string scopes = "read,compile,run";
  std::string expires = "90d";
};

int Fail(std::string_view message) {
  fmt::print(stderr, "kilnd token: {}\n", message);
  return 1;
}

// "never", or a number and m, h or d from now on.
std::expected<std::optional<WallSeconds>, std::string> ParseExpiry(std::string_view text) {
  if (text == "never") return std::nullopt;
  long count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const std::chrono::minutes each = unit == "m" ? std::chrono::minutes(1) : unit == "h" ? std::chrono::hours(1) : std::chrono::days(1);
  if (error != std::errc() || count <= 0 || count > 1'000'000 || (unit != "m" && unit != "h" && unit != "d")) {
    return std::unexpected(fmt::format("'{}' is no time; write 12h, 90d or never", text));
  }
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()) + count * each;
}

int New(const Arguments& a) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(a.file).parent_path(), ignored);
  const auto lock = LockTokens(a.file);
  if (!lock) return Fail(lock.error());
  auto tokens = ReadTokens(a.file);
  if (!tokens) return Fail(tokens.error());
  if (!IsName(a.name) || !IsName(a.tenant)) return Fail("names have at most 64 letters, digits and . _ - @");
  if (std::ranges::find(*tokens, a.name, &Token::name) != tokens->end()) {
    return Fail(fmt::format("there is a token {} already; `kilnd token revoke {}` removes it", a.name, a.name));
  }
  const auto scopes = ParseScopes(a.scopes);
  if (!scopes) return Fail(scopes.error());
  const auto expires = ParseExpiry(a.expires);
  if (!expires) return Fail(expires.error());
  const std::string secret = NewSecret();
  if (secret.empty()) return Fail("the kernel gives no random numbers");
  tokens->push_back({a.name, a.tenant, *scopes, HashToken(secret), *expires});
  if (auto written = WriteTokens(a.file, *tokens); !written) return Fail(written.error());
  fmt::print("{}\n", secret);
  fmt::print(stderr, "This is the only time it is shown: {} keeps its hash. Clients take it from KILN_TOKEN.\n", a.file);
  return 0;
}

int List(const Arguments& a) {
  const auto tokens = ReadTokens(a.file);
  if (!tokens) return Fail(tokens.error());
  for (const Token& token : *tokens) {
    const bool over = token.IsOver(std::chrono::system_clock::now());
    fmt::print("{:24} {:16} {:32} {}{}\n", token.name, token.tenant, FormatScopes(token.scopes), FormatExpiry(token), over ? " (expired)" : "");
  }
  return 0;
}

int Revoke(const Arguments& a) {
  const auto lock = LockTokens(a.file);
  if (!lock) return Fail(lock.error());
  auto tokens = ReadTokens(a.file);
  if (!tokens) return Fail(tokens.error());
  if (std::erase_if(*tokens, [&](const Token& token) { return token.name == a.name; }) == 0) {
    return Fail(fmt::format("there is no token {}; `kilnd token list` shows them", a.name));
  }
  if (auto written = WriteTokens(a.file, *tokens); !written) return Fail(written.error());
  return 0;
}

}  // namespace

int TokenCommand(int argc, char** argv) {
  Arguments a;
  a.file = (DefaultStateDirectory() / "tokens").string();
  int status = 0;
  CLI::App app("Bearer tokens of kilnd: who may call it from other hosts.", "kilnd token");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--tokens", a.file, "the file; kilnd's option of that name")->capture_default_str();
  CLI::App& make = *app.add_subcommand("new", "Make one; it is printed once");
  make.add_option("name", a.name, "what the log calls it")->required();
  make.add_option("--tenant", a.tenant, "tenant whose entries, shares and quotas the token uses")->capture_default_str();
  make.add_option("--scopes", a.scopes, "of read, compile, tune, run, admin, raw")->capture_default_str();
  make.add_option("--expires", a.expires, "12h, 90d, never")->capture_default_str();
  make.callback([&] { status = New(a); });
  app.add_subcommand("list", "Names, tenants, scopes, expiries")->callback([&] { status = List(a); });
  CLI::App& revoke = *app.add_subcommand("revoke", "Take one away");
  revoke.add_option("name", a.name)->required();
  revoke.callback([&] { status = Revoke(a); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return status;
}

}  // namespace kiln::server
