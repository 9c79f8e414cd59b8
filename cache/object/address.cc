// SPDX-License-Identifier: Apache-2.0
#include "cache/object/address.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::cache::object {
namespace {

constexpr std::string_view kDefaultRegion = "us-east-1";

bool IsWord(std::string_view text, std::string_view beside_letters_and_digits) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || beside_letters_and_digits.contains(c);
  });
}

// Only what is written in a URL as it is: so that what is signed is what is asked for.
std::expected<std::string, std::string> ParseFolder(std::string_view text) {
  std::string folder;
  while (text.ends_with('/')) text.remove_suffix(1);
  while (!text.empty()) {
    if (text.starts_with('/')) text.remove_prefix(1);
    const std::string_view name = text.substr(0, text.find('/'));
    if (!IsWord(name, "._~-") || name == "." || name == "..") {
      return std::unexpected(fmt::format("\"{}\" is no name of a folder: letters, digits, '.', '_', '~' and '-' are", name));
    }
    folder += '/';
    folder += name;
    text.remove_prefix(name.size());
  }
  return folder;
}

// "https://HOST:PORT/PATH".
std::expected<Address, std::string> ParseUrl(std::string_view text) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  Address address;
  address.tls = text.starts_with(kTls);
  if (!address.tls && !text.starts_with(kPlain)) return std::unexpected(fmt::format("\"{}\" does not begin with https:// or http://", text));
  std::string_view rest = text.substr((address.tls ? kTls : kPlain).size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view server = rest.substr(0, slash);
  const std::size_t after_address = server.starts_with('[') ? std::min(server.find(']'), server.size()) : 0;
  const bool has_port = server.find(':', after_address) != std::string_view::npos;
  const auto at = ParseHostPort(has_port ? std::string(server) : fmt::format("{}:{}", server, address.tls ? 443 : 80));
  if (!at || at->host.contains('%')) return std::unexpected(fmt::format("\"{}\" is not HOST or HOST:PORT", server));
  address.at = *at;
  auto folder = ParseFolder(rest.substr(slash));
  if (!folder) return std::unexpected(std::move(folder.error()));
  address.folder = std::move(*folder);
  return address;
}

std::expected<Address, std::string> ParseBucket(std::string_view text, std::string_view endpoint, std::string_view region) {
  if (region.empty()) region = kDefaultRegion;
  if (!IsWord(region, "_-")) return std::unexpected(fmt::format("--object-region: \"{}\" is no region", region));
  const std::string_view bucket = text.substr(0, text.find('/'));
  if (!IsWord(bucket, "._-") || bucket.starts_with('.')) return std::unexpected(fmt::format("--object-store: \"{}\" is no name of a bucket", bucket));
  auto folder = ParseFolder(text);
  if (!folder) return std::unexpected("--object-store: " + folder.error());
  auto address = ParseUrl(endpoint.empty() ? fmt::format("https://s3.{}.amazonaws.com", region) : std::string(endpoint));
  if (!address) return std::unexpected("--object-endpoint: " + address.error());
  if (!address->folder.empty()) return std::unexpected("--object-endpoint: it has no path; the bucket and the prefix are in --object-store");
  address->folder = std::move(*folder);
  address->region = region;
  return address;
}

}  // namespace

std::string Address::Origin() const { return (tls ? "https://" : "http://") + at.ToText(); }

std::string Address::PathOf(const Digest& key) const { return folder + "/" + key.ToHex(); }

std::expected<Address, std::string> ParseAddress(std::string_view store, std::string_view endpoint, std::string_view region) {
  constexpr std::string_view kS3 = "s3://";
  // Nothing of such a one is told.
  if (store.contains('@') || endpoint.contains('@')) {
    return std::unexpected("--object-store: an address holds no user and no password: name a file of them with --object-credentials");
  }
  if (store.starts_with(kS3)) return ParseBucket(store.substr(kS3.size()), endpoint, region);
  if (!store.starts_with("https://") && !store.starts_with("http://")) {
    return std::unexpected(fmt::format("--object-store: \"{}\" does not begin with s3://, https:// or http://", store));
  }
  if (!endpoint.empty() || !region.empty()) return std::unexpected("--object-endpoint and --object-region belong to an s3:// store");
  auto address = ParseUrl(store);
  if (!address) return std::unexpected("--object-store: " + address.error());
  return address;
}

}  // namespace kiln::cache::object
