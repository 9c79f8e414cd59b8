// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/trace.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>

namespace kiln::server {
namespace {

// Lower-case digits only, as the recommendation says.
int DigitOf(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

bool ReadHex(std::string_view text, std::span<std::uint8_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = DigitOf(text[2 * i]);
    const int low = DigitOf(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return true;
}

bool AllZero(std::span<const std::uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 0; });
}

std::uint64_t Random() {
  thread_local std::mt19937_64 engine{std::random_device{}() * 0x1'0000'0001ull};
  return engine();
}

}  // namespace

std::string HexOf(const std::uint8_t* bytes, std::size_t count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(kDigits[bytes[i] >> 4]);
    out.push_back(kDigits[bytes[i] & 15]);
  }
  return out;
}

std::string TraceContext::TraceHex() const { return HexOf(trace.data(), trace.size()); }

std::optional<TraceContext> ParseTraceParent(std::string_view header) {
  constexpr std::size_t kLength = 55;  // of version 00: 2-32-16-2 digits and three dashes
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  std::array<std::uint8_t, 1> version{};
  std::array<std::uint8_t, 1> flags{};
  TraceContext context;
  if (!ReadHex(header, version) || !ReadHex(header.substr(3), context.trace) || !ReadHex(header.substr(36), context.parent) ||
      !ReadHex(header.substr(53), flags)) {
    return std::nullopt;
  }
  if (version[0] == 0xff || AllZero(context.trace) || AllZero(context.parent)) return std::nullopt;
  if (header.size() > kLength && (version[0] == 0 || header[kLength] != '-')) return std::nullopt;
  context.sampled = (flags[0] & 1) != 0;
  return context;
}

std::array<std::uint8_t, 8> NewSpanId() {
  const std::uint64_t value = Random() | 1;
  std::array<std::uint8_t, 8> id;
  std::memcpy(id.data(), &value, sizeof value);
  return id;
}

TraceContext NewTrace() {
  TraceContext context;
  const std::array<std::uint64_t, 2> value = {Random() | 1, Random()};
  std::memcpy(context.trace.data(), value.data(), sizeof value);
  return context;
}

}  // namespace kiln::server
