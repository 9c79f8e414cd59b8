// SPDX-License-Identifier: Apache-2.0
#include "server/upstream/via.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>

namespace kiln::server {
namespace {

constexpr std::size_t kName = 16;
constexpr std::string_view kDigits = "0123456789abcdef";

// Of so many names that nothing is forwarded any more.
std::string Full() {
  std::string via;
  for (std::size_t i = 0; i < kMostHops; ++i) via = Extended(via, std::string(kName, '0'));
  return via;
}

}  // namespace

std::string NewViaName() {
  std::uint64_t number = 0;
  ssize_t got = -1;
  do {
    got = ::getrandom(&number, sizeof number, 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof number) std::abort();  // not before the kernel's generator is ready, for which getrandom waits
  return fmt::format("{:016x}", number);
}

std::string ReadVia(std::string_view sent) {
  for (std::size_t at = 0; at < sent.size(); at += kName + 1) {
    const std::string_view name = sent.substr(at, kName);
    const bool ends = at + kName >= sent.size() || sent[at + kName] == ',';
    if (name.size() != kName || name.find_first_not_of(kDigits) != name.npos || !ends || sent.ends_with(',')) return Full();
  }
  return Hops(sent) > kMostHops ? Full() : std::string(sent);
}

std::string ViaOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto sent = metadata.find(kViaHeader);
  return sent == metadata.end() ? std::string() : ReadVia({sent->second.data(), sent->second.size()});
}

bool HasName(std::string_view via, std::string_view name) { return via.contains(name); }

std::size_t Hops(std::string_view via) { return (via.size() + 1) / (kName + 1); }

std::string Extended(std::string_view via, std::string_view name) { return via.empty() ? std::string(name) : fmt::format("{},{}", via, name); }

}  // namespace kiln::server
