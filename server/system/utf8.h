// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::server {

// Text from a hostile module may hold any bytes; protobuf's strings must be UTF-8. Everything that is not printable ASCII and
// not a well-formed sequence becomes '?'.
inline std::string Utf8(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : (lead & 0xF0) == 0xE0 ? 3 : 0;
    bool whole = length > 0 && i + length <= text.size();
    for (std::size_t k = 1; whole && k < length; ++k) whole = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    if (whole && length == 3) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      whole = !(lead == 0xE0 && next < 0xA0) && !(lead == 0xED && next >= 0xA0);  // overlong, surrogates
    }
    out += whole ? text.substr(i, length) : "?";
    i += whole ? length : 1;
  }
  return out;
}

}  // namespace kiln::server
