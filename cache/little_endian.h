// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kiln::cache {

template <std::unsigned_integral T>
void AppendLittleEndian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// The first sizeof(T) bytes, which must be there.
template <std::unsigned_integral T>
T LoadLittleEndian(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<std::uint8_t>(bytes[i])) << (8 * i));
  }
  return value;
}

}  // namespace kiln::cache
