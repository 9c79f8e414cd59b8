// SPDX-License-Identifier: Apache-2.0
#include "server/access/tokens.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "server/access/method_scopes.h"
#include "server/system/guarded_file.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kHashPrefix = "sha256:";
constexpr std::size_t kMaxTokens = 100'000;
constexpr std::array kScopes = {Scope::kRead, Scope::kCompile, Scope::kTune, Scope::kRun, Scope::kAdmin, Scope::kRaw};

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    if (end > at) words.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// 2027-01-31T12:00:00Z.
std::optional<WallSeconds> ParseTime(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:ddZ";
  if (text.size() != kForm.size()) return std::nullopt;
  std::array<unsigned, 6> parts{};
  std::size_t part = 0;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (digit != (kForm[i] == 'd') || (!digit && text[i] != kForm[i])) return std::nullopt;
    if (digit) parts[part] = parts[part] * 10 + static_cast<unsigned>(text[i] - '0');
    if (!digit) ++part;
  }
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(parts[0])), std::chrono::month(parts[1]), std::chrono::day(parts[2]));
  if (!date.ok() || parts[3] > 23 || parts[4] > 59 || parts[5] > 59) return std::nullopt;
  return std::chrono::sys_days(date) + std::chrono::hours(parts[3]) + std::chrono::minutes(parts[4]) + std::chrono::seconds(parts[5]);
}

std::expected<Token, std::string> ParseLine(const std::vector<std::string_view>& words) {
  if (words.size() != 5) return std::unexpected("a line is NAME TENANT SCOPES sha256:HEX EXPIRY");
  if (!IsName(words[0]) || !IsName(words[1])) {
    return std::unexpected("names have at most 64 letters, digits and . _ - @");
  }
  Token token{.name = std::string(words[0]), .tenant = std::string(words[1])};
  const auto scopes = ParseScopes(words[2]);
  if (!scopes) return std::unexpected(scopes.error());
  token.scopes = *scopes;
  const auto hash = words[3].starts_with(kHashPrefix) ? cache::Digest::FromHex(words[3].substr(kHashPrefix.size())) : std::nullopt;
  if (!hash) return std::unexpected("the fourth word is sha256: and 64 hexadecimal digits");
  token.hash = *hash;
  if (words[4] != "never") {
    token.expires = ParseTime(words[4]);
    if (!token.expires) return std::unexpected("the expiry is `never` or like 2027-01-31T12:00:00Z");
  }
  return token;
}

// The file that is replaced may belong to kilnd's user, and root replaces it.
bool KeepOwner(const fs::path& path, int file) {
  struct stat before{};
  struct stat made{};
  if (::stat(path.c_str(), &before) != 0) return errno == ENOENT;
  if (::fstat(file, &made) != 0) return false;
  const bool same = made.st_uid == before.st_uid && made.st_gid == before.st_gid;
  return (same || ::fchown(file, before.st_uid, before.st_gid) == 0) && ::fchmod(file, before.st_mode & 0777) == 0;
}

}  // namespace

bool IsName(std::string_view text) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == '@'; };
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, fits);
}

std::expected<std::uint8_t, std::string> ParseScopes(std::string_view text) {
  std::uint8_t scopes = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    const auto at = std::ranges::find(kScopes, word, NameOf);
    if (at == kScopes.end()) {
      return std::unexpected(fmt::format("there is no scope '{}'; there are read, compile, tune, run and admin", word));
    }
    scopes |= static_cast<std::uint8_t>(*at);
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  if (scopes == 0) return std::unexpected("no scope is given; there are read, compile, tune, run and admin");
  return scopes;
}

std::string FormatScopes(std::uint8_t scopes) {
  std::string text;
  for (const Scope scope : kScopes) {
    if ((scopes & static_cast<std::uint8_t>(scope)) == 0) continue;
    if (!text.empty()) text += ',';
    text += NameOf(scope);
  }
  return text;
}

std::expected<std::vector<Token>, std::string> ParseTokens(std::string_view text) {
  std::vector<Token> tokens;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto words = Words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words.front().starts_with('#')) continue;
    auto token = ParseLine(words);
    if (!token) return std::unexpected(fmt::format("line {}: {}", line, token.error()));
    if (tokens.size() == kMaxTokens) return std::unexpected(fmt::format("line {}: more than {} tokens", line, kMaxTokens));
    tokens.push_back(std::move(*token));
  }
  return tokens;
}

std::string Format(const Token& token) {
  return fmt::format("{} {} {} {}{} {}", token.name, token.tenant, FormatScopes(token.scopes), kHashPrefix, token.hash.ToHex(), FormatExpiry(token));
}

std::string FormatExpiry(const Token& token) {
  if (!token.expires) return "never";
  const auto day = std::chrono::floor<std::chrono::days>(*token.expires);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(*token.expires - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), time.hours().count(), time.minutes().count(), time.seconds().count());
}

std::expected<std::vector<Token>, std::string> ReadTokens(const fs::path& path) {
  const auto text = ReadGuarded(path);
  if (!text) return std::unexpected(text.error());
  if (!*text) return std::vector<Token>();
  auto tokens = ParseTokens(**text);
  if (!tokens) return std::unexpected(fmt::format("{}, {}", path.string(), tokens.error()));
  return tokens;
}

std::expected<void, std::string> WriteTokens(const fs::path& path, const std::vector<Token>& tokens) {
  std::string text = "# kilnd's bearer tokens: name, tenant, scopes, hash, expiry; `kilnd token` writes this file\n";
  for (const Token& token : tokens) text += Format(token) + "\n";
  std::string part = path.string() + ".XXXXXX";
  const UniqueFd file(::mkostemp(part.data(), O_CLOEXEC));
  if (file && KeepOwner(path, file.get()) && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.get()) == 0 && ::rename(part.c_str(), path.c_str()) == 0) {
    return {};
  }
  const int error = errno;
  if (file) ::unlink(part.c_str());
  return std::unexpected(fmt::format("cannot write {}: {}", path.string(), std::strerror(error)));
}

std::expected<UniqueFd, std::string> LockTokens(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  UniqueFd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    return std::unexpected(fmt::format("cannot lock {}: {}", folder.string(), std::strerror(errno)));
  }
  return lock;
}

cache::Digest HashToken(std::string_view secret) { return cache::Hasher().Update(secret).Finish(); }

const Token* FindToken(const std::vector<Token>& tokens, std::string_view secret) {
  const cache::Digest hash = HashToken(secret);
  const Token* found = nullptr;
  for (const Token& token : tokens) {
    if (CRYPTO_memcmp(token.hash.bytes.data(), hash.bytes.data(), hash.bytes.size()) == 0) found = &token;
  }
  return found;
}

std::string NewSecret() {
  std::array<unsigned char, 32> random;
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) return {};
  std::string secret = "kiln_";
  for (const unsigned char byte : random) secret += fmt::format("{:02x}", byte);
  return secret;
}

}  // namespace kiln::server
