// SPDX-License-Identifier: Apache-2.0
//
// Where an object store is, and under which name it has an entry.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "cache/outside/host_port.h"

namespace kiln::cache::object {

struct Address {
  bool tls = false;
  HostPort at;
  std::string folder;                 // "/bucket/prefix", "/path"; empty: the root. Without a slash at its end
  std::optional<std::string> region;  // of S3, whose requests are signed; nothing: plain HTTP

  std::string Origin() const;                   // "https://HOST:PORT"
  std::string PathOf(const Digest& key) const;  // "/bucket/prefix/KEY", with the key's 64 digits
  auto operator<=>(const Address&) const = default;
};

// "s3://BUCKET/PREFIX": a bucket of AWS, or of `endpoint` (https://HOST:PORT, http://HOST:PORT), in `region` (empty: us-east-1). "https://HOST/PATH",
// "http://HOST/PATH": a server that takes GET, HEAD and PUT there; endpoint and region are then empty. The error says what is wrong with it.
std::expected<Address, std::string> ParseAddress(std::string_view store, std::string_view endpoint, std::string_view region);

}  // namespace kiln::cache::object
