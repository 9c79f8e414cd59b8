// SPDX-License-Identifier: Apache-2.0
//
// Who makes a call, as its credentials say: resolved when the call arrives, handed by value to everything that decides on rights,
// shares and quotas. Streams ask again as they go on, whether the credential still gives what it gave (Gate::Confirm).
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "cache/digest.h"

namespace kiln::server {

enum class Scope : std::uint8_t {
  kRead = 1,     // Lookup, Compile on a hit, Capabilities
  kCompile = 2,  // make the workers work; Put
  kTune = 4,     // find the fastest of several kernels on a device of this host
  kRun = 8,      // execute kernels on a device of this host
  kAdmin = 16,   // the cache's maintenance, everybody's statistics
  kRaw = 32,     // compile programs with functions in other languages, which run as they are; nobody has it unless it is given
};

// All but kRaw: what kilnd's own user and root have where no row of the access file names them.
inline constexpr std::uint8_t kEveryScope = 31;

struct CertificateOf {
  std::string name;
};
using Credential = std::variant<unsigned, CertificateOf, cache::Digest>;  // a user's number, a certificate, a token's hash

struct Caller {
  std::string tenant = "default";     // entries, shares and quotas belong to it
  std::string name;                   // for the log: a token's name, a certificate's subject, "uid 1000"
  std::uint8_t scopes = kEveryScope;  // of Scope
  Credential credential;

  bool May(Scope scope) const { return (scopes & static_cast<std::uint8_t>(scope)) != 0; }
};

}  // namespace kiln::server
