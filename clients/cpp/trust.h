// SPDX-License-Identifier: Apache-2.0
//
// Whose artifacts a client loads. Not part of the client's interface.
//
//   $KILN_TRUSTED_KEYS   a file of public keys: those and no others
//   else, Unix socket    the key the daemon names: the kernel guards the socket
//   else, TCP            the key the daemon named the first time, kept in $XDG_CONFIG_HOME/kiln/known_keys (~/.config/…); another
//                        one later is refused, and so is every one where that file cannot be read or written
//   $KILN_VERIFY=0       everybody's
//
// And that an artifact answers what was asked: a signature of the daemon's does not make one program's artifact another's. An artifact
// was made from the very bytes that were asked for, or from a program that differs in names only: their keys are the same. Only the
// compiler's own build computes its keys: of an artifact of another build than this client's, target and options are compared.
//
// May be used from several threads.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/mutex.h"
#include "cache/signature.h"
#include "clients/cpp/client.h"
#include "kiln/v1/seal.pb.h"
#include "kiln/v1/service.pb.h"

namespace kiln {

// What the reply is to be for.
struct Asked {
  std::string_view key = {};                    // empty: not known before
  const v1::CompileRequest* request = nullptr;  // null: asked for by key
};

class Trust {
 public:
  // For its Capabilities: at once with what it knows by now, or with all of them.
  enum class Ask : std::uint8_t { kAtOnce, kAll };
  using AskDaemon = std::function<std::expected<v1::CapabilitiesReply, Error>(Ask)>;

  explicit Trust(std::string address) : address_(std::move(address)) {}

  // Asks whom to trust before anything else: a kilnd that ends right after its answer can no longer say who signs.
  std::expected<void, Error> Learn(const AskDaemon& ask);

  // Checks that the reply's artifact may be loaded, and that it answers what was asked for.
  std::expected<void, Error> Check(const v1::SealedReply& reply, const Asked& asked, const AskDaemon& ask);

 private:
  std::expected<std::vector<cache::PublicKey>, Error> Keys(const AskDaemon& ask);
  std::expected<std::vector<cache::PublicKey>, Error> Find(const AskDaemon& ask);
  std::expected<cache::PublicKey, Error> KnownKey(const cache::PublicKey& named) const KILN_REQUIRES(mutex_);

  const std::string address_;
  cache::Mutex mutex_;
  std::optional<std::vector<cache::PublicKey>> keys_ KILN_GUARDED_BY(mutex_);  // once they are known
};

}  // namespace kiln
