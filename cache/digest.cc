// SPDX-License-Identifier: Apache-2.0
#include "cache/digest.h"

#include <openssl/evp.h>

#include <new>

namespace kiln::cache {
namespace {

// Fetching an algorithm by name takes OpenSSL 3 longer than hashing a few kilobytes, so it is done once.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string Digest::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * kSize);
  for (const std::uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

std::optional<Digest> Digest::FromHex(std::string_view hex) {
  if (hex.size() != 2 * kSize) return std::nullopt;
  Digest digest;
  for (std::size_t i = 0; i < kSize; ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

std::optional<Digest> Digest::FromBytes(std::string_view bytes) {
  if (bytes.size() != kSize) return std::nullopt;
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data(), kSize);
  return digest;
}

Digest Sha256(std::string_view bytes) { return Hasher().Update(bytes).Finish(); }

struct Hasher::State {
  State() : context(EVP_MD_CTX_new()) {
    if (context == nullptr || Algorithm() == nullptr) throw std::bad_alloc();
    Start();
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Start() {
    if (EVP_DigestInit_ex(context, Algorithm(), nullptr) != 1) throw std::bad_alloc();
  }

  EVP_MD_CTX* const context;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

Hasher& Hasher::Update(std::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
  return *this;
}

Digest Hasher::Finish() {
  Digest digest;
  EVP_DigestFinal_ex(state_->context, digest.bytes.data(), nullptr);
  state_->Start();
  return digest;
}

}  // namespace kiln::cache
