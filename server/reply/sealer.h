// SPDX-License-Identifier: Apache-2.0
//
// What this kilnd signs, and whose signatures it accepts. Replies that are kept are sealed with its own key, and an entry from the disk is
// served only with that seal. An entry that another host sealed is accepted only if that host's key is trusted, and is sealed again. So
// clients need only the key of the daemon they talk to.
//
// All members may be called from any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"
#include "cache/mutex.h"
#include "cache/signature.h"
#include "kiln/v1/seal.pb.h"
#include "kiln/v1/tune.pb.h"

namespace kiln::server {

class Sealer {
 public:
  struct Options {
    std::string host;
    std::string compiler;  // build id
  };
  Sealer(cache::SigningKey key, Options options) : key_(std::move(key)), options_(std::move(options)) {}

  // Whom it trusts from now on, beside its own key: nobody at first.
  void Trust(std::vector<cache::PublicKey> keys);

  const cache::PublicKey& public_key() const { return key_.public_key(); }
  bool Trusts(const cache::PublicKey& key) const;  // its own among them

  // Whose a result is, what the program is called, who made it, if not this daemon, the key of the same without its cubin, if it has one, and
  // the public key that vouched for what it was made of, if that was another host's.
  struct About {
    std::string_view tenant, name, put_by = {};
    std::optional<cache::Digest> portable = std::nullopt;
    std::string_view taken_from = {};
  };

  // The serialized reply with its seal. Takes its artifact apart on the way, so that no more than two are in memory.
  std::string Seal(v1::CompileReply&& reply, const v1::CompileRequest& request, const About& about) const;

  // A refusal, as it is kept under that key. Only other hosts look at its seal.
  v1::KeptFailure Seal(const cache::Digest& kept_under, v1::KeptFailure failure, std::string_view target, const About& about) const;

  // What a tuning found, as it is kept under that key.
  v1::TuneRecord Seal(const cache::Digest& kept_under, v1::TuneRecord record, const About& about) const;

  // Checks that an artifact from elsewhere carries the seal of a trusted key. The error says what to do.
  std::expected<void, std::string> CheckForeign(const v1::SealedReply& reply) const;

  // Checks that this daemon sealed the entry and its warnings, and for the key and tenant under which it is kept. The seal of a refusal is not
  // looked at here, since it makes nothing run: only that it is one for its tenant.
  std::expected<void, std::string> Check(const cache::Entry& entry) const;

  // Where an entry of another host comes from. Seals of older kilnds name no tenant and vouch for no warnings: those of a store are not
  // accepted, for nobody needs them there; of those in bundles the warnings are left out.
  enum class From : std::uint8_t { kStore, kBundle };

  // The entry of another host as this one keeps it: nothing is in it that is not signed. A refusal keeps that host's seal.
  std::expected<cache::Entry, std::string> TakeIn(const cache::Entry& entry, From from) const;

 private:
  std::expected<cache::Entry, std::string> TakeInRefusal(const cache::Entry& entry) const;
  std::expected<cache::Entry, std::string> TakeInRecord(const cache::Entry& entry) const;
  std::vector<cache::PublicKey> Trusted() const;

  const cache::SigningKey key_;
  const Options options_;
  mutable cache::Mutex mutex_;
  std::vector<cache::PublicKey> trusted_ KILN_GUARDED_BY(mutex_);
};

// The request that made the result in an entry; nothing where the program is not kept beside it.
std::optional<v1::CompileRequest> ProgramOf(const cache::Entry& entry);

// The build id of the compiler that made the reply in an entry; empty where there is none.
std::string CompilerOf(const cache::Entry& entry);

}  // namespace kiln::server
