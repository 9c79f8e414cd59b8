// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::cache {

// A SHA-256 value: the name of a request (a key) or of some content. Ordered as its hexadecimal text is.
struct Digest {
  static constexpr std::size_t kSize = 32;

  std::array<std::uint8_t, kSize> bytes{};

  friend auto operator<=>(const Digest&, const Digest&) = default;

  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), kSize}; }

  // 64 lower-case digits.
  std::string ToHex() const;

  // Exactly 64 digits of either case, else nothing.
  static std::optional<Digest> FromHex(std::string_view hex);

  // Exactly 32 bytes, else nothing.
  static std::optional<Digest> FromBytes(std::string_view bytes);
};

Digest Sha256(std::string_view bytes);

// SHA-256 of the concatenation of everything it was given. Callers that hash several fields must make the
// concatenation unambiguous themselves (fixed sizes, or sizes first).
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  Hasher& Update(std::string_view bytes);

  // Gives the digest and starts over.
  Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kiln::cache

// The value is uniformly distributed already; its first word is as good a hash as any.
template <>
struct std::hash<kiln::cache::Digest> {
  std::size_t operator()(const kiln::cache::Digest& digest) const noexcept {
    std::size_t word;
    std::memcpy(&word, digest.bytes.data(), sizeof word);
    return word;
  }
};
