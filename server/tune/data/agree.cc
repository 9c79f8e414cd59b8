// SPDX-License-Identifier: Apache-2.0
#include "server/tune/data/agree.h"

#include <algorithm>
#include <array>
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

constexpr const char* kUnread = "the outputs cannot be read back";

// Calls `each(first byte, piece)` until it says something.
template <class Each>
std::optional<std::string> InPieces(std::uint64_t bytes, const ReadBytes& read, const Each& each) {
  std::vector<char> piece;
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    piece.resize(std::min(kPiece, bytes - at));
    if (!read(at, piece.data(), piece.size())) return kUnread;
    if (auto said = each(at, piece)) return said;
  }
  return std::nullopt;
}

// As that, with the piece of ours and of theirs.
template <class Each>
std::optional<std::string> InPieces(std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs, const Each& each) {
  std::vector<char> other;
  return InPieces(bytes, ours, [&](std::uint64_t at, const auto& one) -> std::optional<std::string> {
    other.resize(one.size());
    if (!theirs(at, other.data(), other.size())) return kUnread;
    return each(at, one, other);
  });
}

std::optional<std::string> UnlessEqual(std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs) {
  return InPieces(bytes, ours, theirs, [](std::uint64_t at, const auto& one, const auto& other) -> std::optional<std::string> {
    const auto differs = std::ranges::mismatch(one, other).in1;
    if (differs == one.end()) return std::nullopt;
    return fmt::format("byte {} differs", at + static_cast<std::uint64_t>(differs - one.begin()));
  });
}

// How large the finite elements of a tensor are: counted by their exponents, from that of the smallest double on. The first is zero's.
class Magnitudes {
 public:
  void Add(double value) {
    if (!std::isfinite(value)) return;
    int exponent = 0;
    std::frexp(value, &exponent);
    Bin& bin = bins_[value == 0 ? 0 : static_cast<std::size_t>(exponent - kLeast + 1)];
    ++bin.count;
    bin.squares += static_cast<long double>(value) * value;
    ++finite_;
  }

  std::uint64_t finite() const { return finite_; }
  bool all_zero() const { return bins_[0].count == finite_; }

  // The root mean square without what is more than 2^spread times as large as a quarter of those that are not zero.
  double Scale(unsigned spread) const {
    const std::size_t last = std::min(Quarter() + spread, bins_.size() - 1);
    Bin all;
    for (std::size_t i = 0; i <= last; ++i) {
      all.count += bins_[i].count;
      all.squares += bins_[i].squares;
    }
    return all.count == 0 ? 0 : static_cast<double>(std::sqrt(all.squares / static_cast<long double>(all.count)));
  }

 private:
  struct Bin {
    std::uint64_t count = 0;
    long double squares = 0;  // those of large doubles are beyond a double
  };
  static constexpr int kLeast = std::numeric_limits<double>::min_exponent - std::numeric_limits<double>::digits + 1;
  static constexpr std::size_t kBins = std::numeric_limits<double>::max_exponent - kLeast + 2;

  std::size_t Quarter() const {
    const std::uint64_t wanted = (finite_ - bins_[0].count + 3) / 4;
    std::uint64_t seen = 0;
    for (std::size_t i = 1; i < bins_.size(); ++i) {
      if ((seen += bins_[i].count) >= wanted) return i;
    }
    return bins_.size() - 1;
  }

  std::array<Bin, kBins> bins_{};
  std::uint64_t finite_ = 0;
};

// Nothing where the bytes cannot be read.
std::optional<Magnitudes> MagnitudesOf(const Format& format, std::uint64_t bytes, const ReadBytes& read) {
  Magnitudes magnitudes;
  const std::uint64_t size = (1 + format.exponent + format.mantissa) / 8;
  const auto unread = InPieces(bytes, read, [&](std::uint64_t, const auto& data) -> std::optional<std::string> {
    for (std::uint64_t i = 0; i < data.size() / size; ++i) magnitudes.Add(ElementAt(format, data, i));
    return std::nullopt;
  });
  return unread ? std::nullopt : std::optional(magnitudes);
}

std::optional<Format> FormatOf(v1::DType dtype) {
  const runtime::DTypeInfo* type = runtime::Find(static_cast<runtime::DType>(dtype));
  return type == nullptr ? std::nullopt : FormatOf(*type);
}

}  // namespace

std::optional<std::string> Disagreement(v1::DType dtype, std::uint64_t bytes, const ReadBytes& ours, const ReadBytes& theirs) {
  constexpr unsigned kBesideDigits = 4;  // powers of two
  const auto format = FormatOf(dtype);
  if (!format) return UnlessEqual(bytes, ours, theirs);
  const auto magnitudes = MagnitudesOf(*format, bytes, theirs);
  if (!magnitudes) return kUnread;
  const double scale = magnitudes->Scale(format->mantissa + kBesideDigits);
  const std::uint64_t size = (1 + format->exponent + format->mantissa) / 8;
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

std::optional<std::string> SaysLittle(v1::DType dtype, std::uint64_t bytes, const ReadBytes& theirs) {
  if (bytes == 0) return std::nullopt;
  if (const auto format = FormatOf(dtype)) {
    const auto magnitudes = MagnitudesOf(*format, bytes, theirs);
    if (!magnitudes) return kUnread;
    if (magnitudes->finite() == 0) return "no element is a number";
    return magnitudes->all_zero() ? std::optional<std::string>("every element that is a number is 0") : std::nullopt;
  }
  bool zero = true;
  const auto unread = InPieces(bytes, theirs, [&](std::uint64_t, const auto& data) -> std::optional<std::string> {
    zero = zero && std::ranges::count(data, 0) == std::ssize(data);
    return std::nullopt;
  });
  if (unread) return unread;
  return zero ? std::optional<std::string>("every element is 0") : std::nullopt;
}

}  // namespace kiln::server
