// SPDX-License-Identifier: Apache-2.0
//
// What this kilnd signs, and whose signatures it accepts. Replies that are kept are sealed with its own key, and an entry from the disk is
// served only with that seal. An entry that another host sealed is accepted only if that host's key is trusted, and is sealed again. So
// clients need only the key of the daemon they talk to.
//
// All members may be called from any thread.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"
#include "cache/mutex.h"
#include "cache/signature.h"
#include "kiln/v1/seal.pb.h"

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

  // The serialized reply with its seal. Takes its artifact apart on the way, so that no more than two are in memory. `put_by`: who made it, if
  // not this daemon.
  std::string Seal(v1::CompileReply&& reply, const v1::CompileRequest& request, std::string_view put_by = {}) const;

  // A refusal, as it is kept under that key. Only other hosts look at its seal.
  v1::KeptFailure Seal(const cache::Digest& kept_under, v1::KeptFailure failure) const;

  // Checks that an artifact from elsewhere carries the seal of a trusted key. The error says what to do.
  std::expected<void, std::string> CheckForeign(const v1::SealedReply& reply) const;

  // Checks that this daemon sealed the entry, and for the key and tenant under which it is kept. Refusals have no seal, since they make
  // nothing run; for these it checks only that they are refusals for their tenant.
  std::expected<void, std::string> Check(const cache::Entry& entry) const;

  // The entry of another host as this one keeps it. A refusal keeps that host's seal.
  std::expected<cache::Entry, std::string> TakeIn(const cache::Entry& entry) const;

 private:
  std::expected<cache::Entry, std::string> TakeInRefusal(const cache::Entry& entry) const;
  std::vector<cache::PublicKey> Trusted() const;

  const cache::SigningKey key_;
  const Options options_;
  mutable cache::Mutex mutex_;
  std::vector<cache::PublicKey> trusted_ KILN_GUARDED_BY(mutex_);
};

// The build id of the compiler that made the reply in an entry; empty where there is none.
std::string CompilerOf(const cache::Entry& entry);

}  // namespace kiln::server
