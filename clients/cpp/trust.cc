// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/trust.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "compiler/target/target.h"
#include "server/seal.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Error Refused(std::string message) { return {.code = ErrorCode::kRefused, .message = std::move(message)}; }

fs::path KnownKeysFile() {
  const std::string config = Environment("XDG_CONFIG_HOME");
  const fs::path folder = config.starts_with('/') ? fs::path(config) : fs::path(Environment("HOME")) / ".config";
  return folder / "kiln/known_keys";
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

// A line of the file: the address and its key. The first contact adds one.
std::expected<cache::PublicKey, Error> Trust::KnownKey(const cache::PublicKey& named) const {
  const fs::path path = KnownKeysFile();
  std::ifstream file(path);
  for (std::string address, key; file >> address >> key;) {
    if (address != address_) continue;
    if (key == named.ToText()) return named;
    return std::unexpected(Refused("the kilnd at " + address_ + " signs with another key than it did (" + named.ToText() +
                                   "): it was installed anew, or somebody stands in its place. If it is right, remove its line from " +
                                   path.string()));
  }
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream(path, std::ios::app) << address_ << ' ' << named.ToText() << '\n';
  return named;
}

}  // namespace kiln
