// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/random_data.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

namespace kiln::cli {
namespace {

using runtime::DlCode;

bool IsReal(const runtime::DTypeInfo& type) { return type.dl_code == DlCode::kFloat || type.dl_code == DlCode::kBfloat; }

// The bits of a small random value.
std::uint64_t RandomBits(const runtime::DTypeInfo& type, std::mt19937_64& engine) {
  const std::uint64_t word = engine();
  const int step = static_cast<int>(word % 33) - 16;  // of an eighth
  if (type.dl_code == DlCode::kBool) return word & 1;
  if (type.dl_code == DlCode::kBfloat) return std::bit_cast<std::uint32_t>(static_cast<float>(step) / 8) >> 16;
  if (type.dl_code == DlCode::kFloat) {
    if (type.bits == 16) return std::bit_cast<std::uint16_t>(static_cast<_Float16>(static_cast<float>(step) / 8));
    if (type.bits == 32) return std::bit_cast<std::uint32_t>(static_cast<float>(step) / 8);
    return std::bit_cast<std::uint64_t>(static_cast<double>(step) / 8);
  }
  if (type.dl_code == DlCode::kF8E4M3FN || type.dl_code == DlCode::kF8E4M3FNUZ) {
    return (word & 0x80) | (4 + (word >> 8) % 4) << 3 | (word >> 16 & 7);  // exponents of 1/8 to 1
  }
  if (type.dl_code == DlCode::kF8E5M2 || type.dl_code == DlCode::kF8E5M2FNUZ) {
    return (word & 0x80) | (12 + (word >> 8) % 4) << 2 | (word >> 16 & 3);
  }
  if (type.bits < 8) return word & 0xff;
  return type.dl_code == DlCode::kUint ? word % 5 : static_cast<std::uint64_t>(static_cast<std::int64_t>(word % 9) - 4);
}

std::optional<double> Read(const runtime::DTypeInfo& type, const char* at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, type.bits / 8);
  if (type.dl_code == DlCode::kBfloat) return std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16));
  if (type.dl_code == DlCode::kFloat) {
    if (type.bits == 16) return static_cast<double>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
    if (type.bits == 32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    return std::bit_cast<double>(bits);
  }
  if (type.dl_code == DlCode::kUint) return static_cast<double>(bits);
  if (type.dl_code == DlCode::kInt) return static_cast<double>(static_cast<std::int64_t>(bits << (64 - type.bits)) >> (64 - type.bits));
  return std::nullopt;
}

}  // namespace

std::string RandomData::Fill(const runtime::DTypeInfo& type, std::uint64_t elements) {
  const std::uint64_t size = runtime::Bytes(type, elements);
  const std::size_t step = type.bits < 8 ? 1 : type.bits / 8;
  std::string data(size, '\0');
  for (std::size_t at = 0; at + step <= size; at += step) {
    const std::uint64_t bits = RandomBits(type, engine_);
    std::memcpy(data.data() + at, &bits, step);
  }
  return data;
}

Summary Summarize(const runtime::DTypeInfo& type, std::string_view data) {
  Summary summary;
  if (type.bits < 8 || !(IsReal(type) || type.dl_code == DlCode::kInt || type.dl_code == DlCode::kUint)) return summary;
  summary.known = true;
  for (std::size_t at = 0; at + type.bits / 8 <= data.size(); at += type.bits / 8) {
    const double value = Read(type, data.data() + at).value_or(0);
    if (std::isfinite(value)) {
      summary.largest = std::max(summary.largest, std::abs(value));
    } else {
      ++summary.not_finite;
    }
  }
  return summary;
}

}  // namespace kiln::cli
