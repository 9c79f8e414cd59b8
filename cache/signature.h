// SPDX-License-Identifier: Apache-2.0
//
// Ed25519 (RFC 8032) over bytes: who vouches for an entry.
#pragma once

#include <array>
#include <compare>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cache/error.h"

namespace kiln::cache {

struct PublicKey {
  static constexpr std::size_t kSize = 32;
  std::array<unsigned char, kSize> bytes{};

  static std::optional<PublicKey> FromBytes(std::string_view bytes);
  static std::optional<PublicKey> FromText(std::string_view text);  // "ed25519:" and 64 hexadecimal digits
  std::string ToText() const;
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

  auto operator<=>(const PublicKey&) const = default;
};

// Whether whoever holds the private half of `key` signed `message`.
bool IsSigned(const PublicKey& key, std::string_view message, std::string_view signature);

// May be used from several threads. Copies are cheap.
class SigningKey {
 public:
  // The key in that PEM file. A file that does not exist is made, mode 0600, with a new key from the kernel's random numbers.
  // kRefused for one that others can read or that holds no such key; kUnreachable where it cannot be read or made.
  static std::expected<SigningKey, Error> LoadOrMake(const std::filesystem::path& path);
  static SigningKey Make();

  // Writes one that was made into that file, if there is none. kRefused where another key is there.
  std::expected<void, Error> Keep(const std::filesystem::path& path) const;

  const PublicKey& public_key() const { return public_key_; }
  std::string Sign(std::string_view message) const;  // 64 bytes

 private:
  SigningKey(std::shared_ptr<void> key, PublicKey public_key) : key_(std::move(key)), public_key_(public_key) {}

  std::shared_ptr<void> key_;  // EVP_PKEY
  PublicKey public_key_;
};

}  // namespace kiln::cache
