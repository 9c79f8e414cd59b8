// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/trust.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "compiler/target/target.h"
#include "server/config_environment.h"
#include "server/seal.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

using server::Environment;

Error Refused(std::string message) { return {.code = ErrorCode::kRefused, .message = std::move(message)}; }

// Every contact would be a first one without that file.
Error Forgetful(const std::string& problem) {
  return Refused(problem + ". It keeps the key that a kilnd named first, so that another in its place is noticed; or name the keys to trust "
                           "in a file, with KILN_TRUSTED_KEYS");
}

std::expected<fs::path, Error> KnownKeysFile() {
  const std::string config = Environment("XDG_CONFIG_HOME");
  if (config.starts_with('/')) return fs::path(config) / "kiln/known_keys";
  const std::string home = Environment("HOME");
  if (home.starts_with('/')) return fs::path(home) / ".config/kiln/known_keys";
  return std::unexpected(Forgetful("there is no place for kiln/known_keys: set HOME or XDG_CONFIG_HOME to a whole path"));
}

// A line of the file: an address and its key. Empty: the address is in none.
std::expected<std::string, Error> KeyInFile(const fs::path& path, const std::string& wanted) {
  errno = 0;
  std::ifstream file(path);
  if (!file && errno == ENOENT) return std::string();
  for (std::string address, key; file >> address >> key;) {
    if (address == wanted) return key;
  }
  if (file.eof()) return std::string();
  return std::unexpected(Forgetful("cannot read " + path.string() + ": " + std::strerror(errno) + "; make it readable"));
}

std::expected<void, Error> AddToFile(const fs::path& path, const std::string& line) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  errno = 0;
  std::ofstream file(path, std::ios::app);
  file << line << std::flush;
  if (file) return {};
  const std::string why = error ? error.message() : std::strerror(errno);
  return std::unexpected(Forgetful("cannot write " + path.string() + ": " + why + "; make it and its folder writable"));
}

std::expected<std::vector<cache::PublicKey>, Error> FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return std::unexpected(Refused("cannot read " + path + " (KILN_TRUSTED_KEYS)"));
  auto keys = server::ParseTrustedKeys(text.view());
  if (!keys) return std::unexpected(Refused(path + ", " + keys.error()));
  return *keys;
}

std::string Canonical(const std::string& target) {
  const auto known = target::Find(target);
  return known ? std::string((*known)->name) : target;
}

// Deterministic, for there is no map in it.
bool SameOptions(const v1::CompileOptions& a, const v1::CompileOptions& b) { return a.SerializeAsString() == b.SerializeAsString(); }

// Empty: it answers what was asked.
std::string Mismatch(const v1::Provenance& provenance, const Asked& asked) {
  if (!asked.key.empty() && provenance.key() != asked.key) return "it is the artifact of another key than the one asked for";
  if (asked.request == nullptr) return "";
  if (Canonical(provenance.target()) != Canonical(asked.request->target())) {
    return "the artifact was made for " + provenance.target() + ", and asked for was " + asked.request->target();
  }
  if (!SameOptions(provenance.options(), asked.request->options())) return "the artifact was made with other options than those asked for";
  return "";
}

}  // namespace

std::expected<void, Error> Trust::Check(const v1::SealedReply& reply, const Asked& asked, const AskDaemon& ask) {
  if (Environment("KILN_VERIFY") == "0") return {};
  const auto keys = Keys(ask);
  if (!keys) return std::unexpected(keys.error());
  const auto provenance = server::Verify(reply, *keys);
  const std::string why = provenance ? Mismatch(*provenance, asked) : provenance.error();
  if (!why.empty()) return std::unexpected(Refused("what " + address_ + " sent is not loaded: " + why));
  return {};
}

std::expected<std::vector<cache::PublicKey>, Error> Trust::Keys(const AskDaemon& ask) {
  std::lock_guard lock(mutex_);
  if (keys_) return *keys_;
  if (const std::string file = Environment("KILN_TRUSTED_KEYS"); !file.empty()) {
    auto keys = FromFile(file);
    if (keys) keys_ = *keys;
    return keys;
  }
  const auto named = ask();
  if (!named) return std::unexpected(named.error());
  const auto key = cache::PublicKey::FromBytes(*named);
  if (!key) return std::unexpected(Refused("the kilnd at " + address_ + " names no signing key; it is older than this client"));
  if (!address_.starts_with("unix:")) {
    if (auto known = KnownKey(*key); !known) return std::unexpected(std::move(known.error()));
  }
  keys_ = {*key};
  return *keys_;
}

// The first contact adds the key to the file.
std::expected<cache::PublicKey, Error> Trust::KnownKey(const cache::PublicKey& named) const {
  const auto path = KnownKeysFile();
  if (!path) return std::unexpected(path.error());
  const auto known = KeyInFile(*path, address_);
  if (!known) return std::unexpected(known.error());
  if (known->empty()) {
    if (auto added = AddToFile(*path, address_ + ' ' + named.ToText() + '\n'); !added) return std::unexpected(std::move(added.error()));
  } else if (*known != named.ToText()) {
    return std::unexpected(Refused("the kilnd at " + address_ + " signs with another key than it did (" + named.ToText() +
                                   "): it was installed anew, or somebody stands in its place. If it is right, remove its line from " +
                                   path->string()));
  }
  return named;
}

}  // namespace kiln
