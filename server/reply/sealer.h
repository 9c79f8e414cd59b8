// SPDX-License-Identifier: Apache-2.0
//
// What this kilnd signs, and whose signatures it takes: replies that are kept are sealed with its own key; an entry from the
// disk is served only with that seal; one that another host sealed is taken in only if its key is trusted, and sealed again, so
// that clients need to know the key of the daemon they talk to and no other.
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

  // That an artifact from elsewhere carries the seal of a trusted key. The error says what to do.
  std::expected<void, std::string> CheckForeign(const v1::SealedReply& reply) const;

  // That the entry is sealed by this daemon and was made for the key and tenant it is kept under. Refusals have no seal, for they
  // make nothing run: that they are refusals of their tenant is what is checked.
  std::expected<void, std::string> Check(const cache::Entry& entry) const;

  // The entry of another host as this one keeps it.
  std::expected<cache::Entry, std::string> TakeIn(const cache::Entry& entry) const;

 private:
  std::vector<cache::PublicKey> Trusted() const;

  const cache::SigningKey key_;
  const Options options_;
  mutable cache::Mutex mutex_;
  std::vector<cache::PublicKey> trusted_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::server
