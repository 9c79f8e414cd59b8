// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/trust.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "cache/digest.h"
#include "clients/common/config_environment.h"
#include "clients/common/seal.h"
#include "compiler/key.h"
#include "compiler/target/target.h"
#include "ir/codec/decode.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

Error Refused(std::string message) { return {.code = ErrorCode::kRefused, .message = std::move(message)}; }

// Every contact would be a first one without that file.
Error Forgetful(const std::string& problem) {
  return Refused(problem +
                 ". That file keeps the first key of each kilnd, so that a false kilnd in its place is noticed; or name the keys to trust "
                 "in a file, with KILN_TRUSTED_KEYS");
}

std::expected<fs::path, Error> KnownKeysFile() {
  const std::string config = Environment("XDG_CONFIG_HOME");
  if (config.starts_with('/')) return fs::path(config) / "kiln/known_keys";
  const std::string home = Environment("HOME");
  if (home.starts_with('/')) return fs::path(home) / ".config/kiln/known_keys";
  return std::unexpected(Forgetful("there is no place for kiln/known_keys: set HOME or XDG_CONFIG_HOME to a whole path"));
}

// A line of the file: an address and its key; '#' begins a comment. Empty: no line has the address. A malformed line may be meant for any
// address, so no address counts as new then.
std::expected<std::string, Error> KeyInFile(const fs::path& path, const std::string& wanted) {
  errno = 0;
  std::ifstream file(path);
  if (!file && errno == ENOENT) return std::string();
  std::string line, known;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string address, key, more;
    if (!(words >> address) || address.starts_with('#')) continue;
    if (!(words >> key) || words >> more) {
      return std::unexpected(
          Refused(path.string() + ", line " + std::to_string(number) + ": each line holds an address and its key; correct this line, or remove it"));
    }
    if (address == wanted && known.empty()) known = key;
  }
  if (file.eof()) return known;
  return std::unexpected(Forgetful("cannot read " + path.string() + ": " + std::strerror(errno) + "; make it readable"));
}

bool EndsInsideALine(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

std::expected<void, Error> AddToFile(const fs::path& path, const std::string& line) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const std::string whole = (EndsInsideALine(path) ? "\n" : "") + line + '\n';
  errno = 0;
  std::ofstream file(path, std::ios::app);
  file << whole << std::flush;
  if (file) return {};
  const std::string why = error ? error.message() : std::strerror(errno);
  return std::unexpected(Forgetful("cannot write " + path.string() + ": " + why + "; make it and its folder writable"));
}

std::expected<std::vector<cache::PublicKey>, Error> FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return std::unexpected(Refused("cannot read " + path + " (KILN_TRUSTED_KEYS)"));
  auto keys = ParseTrustedKeys(text.view());
  if (!keys) return std::unexpected(Refused(path + ", " + keys.error()));
  return *keys;
}

std::string Canonical(const std::string& target) {
  const auto known = target::Find(target);
  return known ? std::string((*known)->name) : target;
}

// Deterministic, for there is no map in it.
bool SameOptions(const v1::CompileOptions& a, const v1::CompileOptions& b) { return a.SerializeAsString() == b.SerializeAsString(); }

bool IsKey(const compiler::Key& key, const v1::Provenance& provenance) { return provenance.key() == cache::Digest{key}.view(); }

// Also true if it cannot be determined.
std::expected<bool, Error> IsOfProgram(const v1::Provenance& provenance, const v1::CompileRequest& request, const Trust::AskDaemon& ask) {
  if (provenance.ir_sha256() == cache::Sha256(request.module()).view() || provenance.compiler() != compiler::BuildId()) return true;
  ir::Diagnostics ignored;
  const auto module = ir::DecodeModule(request.module(), ignored);
  if (!module) return false;
  const compiler::Key key = compiler::ComputeKey(*module, provenance.target(), request.options());
  if (IsKey(key, provenance)) return true;
  // All of them come once the devices of its host are known, which may take a while.
  for (const Trust::Ask what : {Trust::Ask::kAtOnce, Trust::Ask::kAll}) {
    const auto daemon = ask(what);
    if (!daemon) return std::unexpected(daemon.error());
    if (IsKey(compiler::WithPtxas(key, daemon->ptxas()), provenance)) return true;
  }
  return false;
}

// Empty: it answers what was asked.
std::expected<std::string, Error> Mismatch(const v1::Provenance& provenance, const Asked& asked, const Trust::AskDaemon& ask) {
  if (!asked.key.empty() && provenance.key() != asked.key) return "it is the artifact of another key than the one asked for";
  if (asked.request == nullptr) return "";
  if (Canonical(provenance.target()) != Canonical(asked.request->target())) {
    return "the artifact was made for " + provenance.target() + ", but the request was for " + asked.request->target();
  }
  if (!SameOptions(provenance.options(), asked.request->options())) return "the artifact was made with other options than those asked for";
  const auto of_program = IsOfProgram(provenance, *asked.request, ask);
  if (!of_program) return std::unexpected(of_program.error());
  return *of_program ? "" : "the artifact was made from another program than the one asked for";
}

}  // namespace

std::expected<void, Error> Trust::Learn(const AskDaemon& ask) {
  if (Environment("KILN_VERIFY") == "0") return {};
  if (auto keys = Keys(ask); !keys) return std::unexpected(std::move(keys.error()));
  return {};
}

std::expected<void, Error> Trust::Check(const v1::SealedReply& reply, const Asked& asked, const AskDaemon& ask) {
  if (Environment("KILN_VERIFY") == "0") return {};
  const auto keys = Keys(ask);
  if (!keys) return std::unexpected(keys.error());
  const auto provenance = Verify(reply, *keys);
  const auto why = provenance ? Mismatch(*provenance, asked, ask) : provenance.error();
  if (!why) return std::unexpected(why.error());
  if (!why->empty()) return std::unexpected(Refused("what " + address_ + " sent is not loaded: " + *why));
  return {};
}

std::expected<std::vector<cache::PublicKey>, Error> Trust::Keys(const AskDaemon& ask) {
  {
    cache::MutexLock lock(mutex_);
    if (keys_) return *keys_;
  }
  auto keys = Find(ask);
  if (keys) {
    cache::MutexLock lock(mutex_);
    keys_ = *keys;
  }
  return keys;
}

// Asked under no lock: each call has a deadline of its own.
std::expected<std::vector<cache::PublicKey>, Error> Trust::Find(const AskDaemon& ask) {
  if (const std::string file = Environment("KILN_TRUSTED_KEYS"); !file.empty()) return FromFile(file);
  const auto daemon = ask(Ask::kAtOnce);
  if (!daemon) return std::unexpected(daemon.error());
  const auto key = cache::PublicKey::FromBytes(daemon->signing_key());
  if (!key) return std::unexpected(Refused("the kilnd at " + address_ + " names no signing key; it is older than this client"));
  if (!address_.starts_with("unix:")) {
    cache::MutexLock lock(mutex_);  // two first contacts at one time are one
    if (auto known = KnownKey(*key); !known) return std::unexpected(std::move(known.error()));
  }
  return std::vector{*key};
}

// The first contact adds the key to the file.
std::expected<cache::PublicKey, Error> Trust::KnownKey(const cache::PublicKey& named) const {
  const auto path = KnownKeysFile();
  if (!path) return std::unexpected(path.error());
  const auto known = KeyInFile(*path, address_);
  if (!known) return std::unexpected(known.error());
  if (known->empty()) {
    if (auto added = AddToFile(*path, address_ + ' ' + named.ToText()); !added) return std::unexpected(std::move(added.error()));
  } else if (*known != named.ToText()) {
    return std::unexpected(Refused("the kilnd at " + address_ + " signs with another key than before (" + named.ToText() +
                                   "): it was reinstalled, or another server takes its place. If the new key is right, remove its line from " +
                                   path->string()));
  }
  return named;
}

}  // namespace kiln
