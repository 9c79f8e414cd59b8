// SPDX-License-Identifier: Apache-2.0
#include "server/tune/data/fill.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "clients/runtime/dtype.h"

namespace kiln::server {
namespace {

using runtime::DlCode;

constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;  // a multiple of every element's size

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Words {
 public:
  explicit Words(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t word = state_ += 0x9e3779b97f4a7c15;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
  }

 private:
  std::uint64_t state_;
};

// The bits of some small values, of which each element is one: 64, so that six random bits choose. Floats of magnitude below 2.
std::array<std::uint64_t, 64> SmallValues(const runtime::DTypeInfo& type) {
  std::array<std::uint64_t, 64> values{};
  for (int i = 0; i < 64; ++i) {
    std::uint64_t& bits = values[static_cast<std::size_t>(i)];
    const auto word = static_cast<std::uint64_t>(i);
    const float real = static_cast<float>(i - 32 + (i >= 32 ? 1 : 0)) / 20;
    switch (type.dl_code) {
      case DlCode::kBool: bits = word & 1; break;
      case DlCode::kBfloat: bits = std::bit_cast<std::uint32_t>(real) >> 16; break;
      case DlCode::kFloat:
        bits = type.bits == 64   ? std::bit_cast<std::uint64_t>(double{real})
               : type.bits == 32 ? std::bit_cast<std::uint32_t>(real)
               : type.bits == 16 ? std::bit_cast<std::uint16_t>(static_cast<_Float16>(real))
                                 : word;
        break;
      // A sign, one of four exponents that give 1/8 to 2, and the upper bits of a mantissa.
      case DlCode::kF8E4M3FN:
      case DlCode::kF8E4M3FNUZ: bits = (word & 1) << 7 | (4 + (word >> 1 & 3)) << 3 | (word >> 3); break;
      case DlCode::kF8E5M2:
      case DlCode::kF8E5M2FNUZ: bits = (word & 1) << 7 | (12 + (word >> 1 & 3)) << 2 | (word >> 3 & 3); break;
      case DlCode::kF4E2M1FN: bits = word & 15; break;
      case DlCode::kUint: bits = word % 5; break;
      case DlCode::kInt: bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(word % 9) - 4); break;
    }
  }
  return values;
}

const runtime::DTypeInfo* TypeOf(const v1::TuneArgument& argument) { return runtime::Find(static_cast<runtime::DType>(argument.tensor().dtype())); }

}  // namespace

std::optional<std::string> ProblemOf(const v1::TuneArgument& argument) {
  if (argument.fill() == v1::TUNE_FILL_DATA || argument.fill() == v1::TUNE_FILL_ZEROS) return std::nullopt;
  if (!argument.has_tensor()) return "a number has no recipe for its data";
  const runtime::DTypeInfo* type = TypeOf(argument);
  if (type == nullptr) return "a tensor of a type that is not known here cannot be filled";
  if (argument.fill() == v1::TUNE_FILL_RANDOM) return std::nullopt;
  if (argument.fill() != v1::TUNE_FILL_RANGE) return "a recipe that is not known here; random, a range, zeros and data are";
  if (!runtime::IsInteger(type->dtype) || type->bits < 8) return fmt::format("a range of integers does not fill a tensor of {}", type->name);
  if (argument.low() >= argument.high()) return fmt::format("the range of integers from {} to below {} is empty", argument.low(), argument.high());
  if (!runtime::ScalarBits(type->dtype, std::int64_t{argument.low()}) || !runtime::ScalarBits(type->dtype, std::int64_t{argument.high()} - 1)) {
    return fmt::format("{} does not hold the integers from {} to below {}", type->name, argument.low(), argument.high());
  }
  return std::nullopt;
}

bool Fill(const v1::TuneArgument& argument, std::uint64_t seed, const std::function<bool(std::uint64_t position, std::string_view data)>& write) {
  if (argument.fill() == v1::TUNE_FILL_ZEROS || argument.fill() == v1::TUNE_FILL_DATA) return true;  // memory is zero at first
  const runtime::DTypeInfo& type = *TypeOf(argument);
  const bool whole_bytes = type.bits >= 8;
  const std::size_t size = whole_bytes ? type.bits / 8 : 1;
  const auto small = SmallValues(type);
  const bool range = argument.fill() == v1::TUNE_FILL_RANGE;
  const auto low = static_cast<std::uint64_t>(argument.low());
  const std::uint64_t count = static_cast<std::uint64_t>(argument.high()) - low;
  Words words(seed);
  std::string piece;
  for (std::uint64_t at = 0; at < argument.tensor().bytes(); at += piece.size()) {
    piece.resize(std::min(kPiece, argument.tensor().bytes() - at));
    std::uint64_t word = 0;
    unsigned left = 0;  // elements that the word still chooses
    for (std::size_t i = 0; i + size <= piece.size(); i += size) {
      if (range || !whole_bytes || left == 0) {
        word = words();
        left = 10;
      }
      const std::uint64_t bits = range ? low + word % count : whole_bytes ? small[word & 63] : word;
      std::memcpy(piece.data() + i, &bits, size);
      word >>= 6;
      --left;
    }
    if (!write(at, piece)) return false;
  }
  return true;
}

}  // namespace kiln::server
