// SPDX-License-Identifier: Apache-2.0
#include "server/tune/agree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "clients/runtime/dtype.h"

namespace kiln::server {
namespace {

using runtime::DlCode;

constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

// How the bits of a float are divided.
struct Format {
  unsigned exponent, mantissa;
  bool has_infinity;  // and so NaNs beside it; else only the bits that `is_nan` names
  bool one_nan;       // the sign alone, as the "fnuz" types have it
  double part;        // of a value, that other roundings explain
};

std::optional<Format> FormatOf(const runtime::DTypeInfo& type) {
  switch (type.dl_code) {
    case DlCode::kFloat:
      if (type.bits == 64) return Format{11, 52, true, false, 0x1p-30};
      if (type.bits == 32) return Format{8, 23, true, false, 0x1p-10};
      if (type.bits == 16) return Format{5, 10, true, false, 0x1p-7};
      return std::nullopt;
    case DlCode::kBfloat: return Format{8, 7, true, false, 0x1p-5};
    case DlCode::kF8E4M3FN: return Format{4, 3, false, false, 0x1p-2};
    case DlCode::kF8E4M3FNUZ: return Format{4, 3, false, true, 0x1p-2};
    case DlCode::kF8E5M2: return Format{5, 2, true, false, 0x1p-1};
    case DlCode::kF8E5M2FNUZ: return Format{5, 2, false, true, 0x1p-1};
    default: return std::nullopt;
  }
}

double Decode(const Format& format, std::uint64_t bits) {
  const unsigned width = 1 + format.exponent + format.mantissa;
  if (width == 64) return std::bit_cast<double>(bits);
  if (width == 32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  const std::uint64_t sign = bits >> (width - 1) & 1;
  const std::uint64_t most = (std::uint64_t{1} << format.exponent) - 1, all = (std::uint64_t{1} << format.mantissa) - 1;
  const std::uint64_t exponent = bits >> format.mantissa & most, mantissa = bits & all;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (format.one_nan && sign == 1 && exponent == 0 && mantissa == 0) return kNan;
  if (format.has_infinity && exponent == most) {
    if (mantissa != 0) return kNan;
    return sign == 1 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
  if (!format.has_infinity && !format.one_nan && exponent == most && mantissa == all) return kNan;
  const int bias = (1 << (format.exponent - 1)) - (format.one_nan ? 0 : 1);
  const int power = static_cast<int>(exponent == 0 ? 1 : exponent) - bias - static_cast<int>(format.mantissa);
  const double magnitude = std::ldexp(static_cast<double>(exponent == 0 ? mantissa : mantissa + all + 1), power);
  return sign == 1 ? -magnitude : magnitude;
}

double ElementAt(const Format& format, const std::vector<char>& data, std::uint64_t index) {
  const std::size_t size = (1 + format.exponent + format.mantissa) / 8;
  std::uint64_t bits = 0;
  std::memcpy(&bits, data.data() + index * size, size);
  return Decode(format, bits);
}

// Calls `each(first byte, piece of ours, piece of theirs)` until it says something.
template <class Each>
std::optional<std::string> InPieces(std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs, const Each& each) {
  std::vector<char> one, other;
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    const std::uint64_t size = std::min(kPiece, bytes - at);
    one.resize(size);
    other.resize(size);
    if (!ours(at, one.data(), size) || !theirs(at, other.data(), size)) return "the outputs cannot be read back";
    if (auto said = each(at, one, other)) return said;
  }
  return std::nullopt;
}

std::optional<std::string> UnlessEqual(std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs) {
  return InPieces(bytes, ours, theirs, [](std::uint64_t at, const auto& one, const auto& other) -> std::optional<std::string> {
    const auto differs = std::ranges::mismatch(one, other).in1;
    if (differs == one.end()) return std::nullopt;
    return fmt::format("byte {} differs", at + static_cast<std::uint64_t>(differs - one.begin()));
  });
}

}  // namespace

std::optional<std::string> Disagreement(v1::DType dtype, std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs) {
  const runtime::DTypeInfo* type = runtime::Find(static_cast<runtime::DType>(dtype));
  const auto format = type == nullptr ? std::nullopt : FormatOf(*type);
  if (!format) return UnlessEqual(bytes, ours, theirs);
  const std::uint64_t size = type->bits / 8;
  double squares = 0;
  std::uint64_t finite = 0;
  auto unread = InPieces(bytes, theirs, theirs, [&](std::uint64_t, const auto& data, const auto&) -> std::optional<std::string> {
    for (std::uint64_t i = 0; i < data.size() / size; ++i) {
      const double value = ElementAt(*format, data, i);
      if (!std::isfinite(value)) continue;
      squares += value * value;
      ++finite;
    }
    return std::nullopt;
  });
  if (unread) return unread;
  const double scale = finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
  return InPieces(bytes, ours, theirs, [&](std::uint64_t at, const auto& one, const auto& other) -> std::optional<std::string> {
    for (std::uint64_t i = 0; i < one.size() / size; ++i) {
      const double got = ElementAt(*format, one, i), expected = ElementAt(*format, other, i);
      const bool same = got == expected || (std::isnan(got) && std::isnan(expected));
      const bool near = std::isfinite(got) && std::isfinite(expected) && std::abs(got - expected) <= format->part * (std::abs(expected) + scale);
      if (same || near) continue;
      return fmt::format("element {} is {:.6g}, and {:.6g} in the reference", at / size + i, got, expected);
    }
    return std::nullopt;
  });
}

}  // namespace kiln::server
