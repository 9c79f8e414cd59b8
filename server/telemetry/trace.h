// SPDX-License-Identifier: Apache-2.0
//
// W3C Trace Context (https://www.w3.org/TR/trace-context/): where in a client's trace a request belongs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::server {

struct TraceContext {
  std::array<std::uint8_t, 16> trace{};
  std::array<std::uint8_t, 8> parent{};  // the client's span; all zero: none
  bool sampled = true;

  bool known() const { return trace != decltype(trace){}; }
  std::string TraceHex() const;
};

// Parses the header `traceparent`; nullopt if it is not well-formed (section 3.2 there: such a header is ignored).
std::optional<TraceContext> ParseTraceParent(std::string_view header);

// A trace of our own, for a request that came without one.
TraceContext NewTrace();
std::array<std::uint8_t, 8> NewSpanId();

std::string HexOf(const std::uint8_t* bytes, std::size_t count);

}  // namespace kiln::server
