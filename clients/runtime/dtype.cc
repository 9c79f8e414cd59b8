// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kiln::runtime {
namespace {

constexpr DTypeInfo kTable[] = {
    {DType::kBool, "bool", 8, DlCode::kBool, "|b1"},
    {DType::kI8, "int8", 8, DlCode::kInt, "|i1"},
    {DType::kI16, "int16", 16, DlCode::kInt, "<i2"},
    {DType::kI32, "int32", 32, DlCode::kInt, "<i4"},
    {DType::kI64, "int64", 64, DlCode::kInt, "<i8"},
    {DType::kU8, "uint8", 8, DlCode::kUint, "|u1"},
    {DType::kU16, "uint16", 16, DlCode::kUint, "<u2"},
    {DType::kU32, "uint32", 32, DlCode::kUint, "<u4"},
    {DType::kU64, "uint64", 64, DlCode::kUint, "<u8"},
    {DType::kF16, "float16", 16, DlCode::kFloat, "<f2"},
    {DType::kBF16, "bfloat16", 16, DlCode::kBfloat, "<u2"},
    {DType::kF32, "float32", 32, DlCode::kFloat, "<f4"},
    {DType::kF64, "float64", 64, DlCode::kFloat, "<f8"},
    {DType::kTF32, "tfloat32", 32, DlCode::kFloat, "<f4"},
    {DType::kF8E4M3, "float8_e4m3fn", 8, DlCode::kF8E4M3FN, "|u1"},
    {DType::kF8E5M2, "float8_e5m2", 8, DlCode::kF8E5M2, "|u1"},
    {DType::kF8E4M3FNUZ, "float8_e4m3fnuz", 8, DlCode::kF8E4M3FNUZ, "|u1"},
    {DType::kF8E5M2FNUZ, "float8_e5m2fnuz", 8, DlCode::kF8E5M2FNUZ, "|u1"},
    {DType::kI4, "int4", 4, DlCode::kInt, "|i1"},
    {DType::kU4, "uint4", 4, DlCode::kUint, "|u1"},
    {DType::kF4E2M1, "float4_e2m1fn", 4, DlCode::kF4E2M1FN, "|u1"},
};

template <class Predicate>
const DTypeInfo* FindIf(Predicate matches) {
  for (const DTypeInfo& info : kTable)
    if (matches(info)) return &info;
  return nullptr;
}

// Types that hold the same bits for each other's purposes.
int Family(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kI8:
    case DType::kU8: return 1;
    case DType::kF8E4M3:
    case DType::kF8E4M3FNUZ: return 2;
    case DType::kF8E5M2:
    case DType::kF8E5M2FNUZ: return 3;
    case DType::kTF32:
    case DType::kF32: return 4;
    default: return 0;
  }
}

// `value` rounded once, half to even, to a float of `exponent` and `mantissa` bits (IEEE, with infinities).
uint64_t RoundTo(double value, int exponent, int mantissa) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t sign = (bits >> 63) << (exponent + mantissa);
  const uint64_t infinity = ((uint64_t(1) << exponent) - 1) << mantissa;
  if (std::isnan(value)) return sign | infinity | (uint64_t(1) << (mantissa - 1));
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  const int bias = (1 << (exponent - 1)) - 1;
  int scale = 0;
  std::frexp(value, &scale);  // |value| = f · 2^scale, ½ ≤ f < 1
  // The unit in the last place: normal numbers have mantissa+1 digits, subnormal ones end at 2^(1-bias-mantissa).
  const int unit = std::max(scale - 1 - mantissa, 1 - bias - mantissa);
  const double digits = std::nearbyint(std::ldexp(std::fabs(value), -unit));
  // Carries run from the mantissa into the exponent, up to infinity.
  const uint64_t steps = uint64_t(digits) + (uint64_t(unit - (1 - bias - mantissa)) << mantissa);
  return sign | std::min(steps, infinity);
}

}  // namespace

const DTypeInfo* Find(DType dtype) {
  return FindIf([&](const DTypeInfo& info) { return info.dtype == dtype; });
}
const DTypeInfo* FindDType(std::string_view name) {
  if (name == "float4_e2m1fn_x2") return Find(DType::kU8);  // torch's byte of two
  if (name == "float8_e8m0fnu") return Find(DType::kU8);    // programs take its bytes apart
  return FindIf([&](const DTypeInfo& info) { return info.name == name; });
}
const DTypeInfo* FindDType(uint8_t dl_code, uint8_t bits, uint16_t lanes) {
  constexpr uint8_t kScale = 14;  // DLPack's kDLFloat8_e8m0fnu
  if (DlCode(dl_code) == DlCode::kF4E2M1FN && bits == 4 && lanes == 2) return Find(DType::kU8);
  if (dl_code == kScale && bits == 8 && lanes == 1) return Find(DType::kU8);
  if (lanes != 1) return nullptr;
  return FindIf([&](const DTypeInfo& info) { return uint8_t(info.dl_code) == dl_code && info.bits == bits; });
}
const DTypeInfo* FindDTypeOfArray(std::string_view type_string) {
  return FindIf([&](const DTypeInfo& info) { return info.array == type_string; });
}

std::string_view Name(DType dtype) {
  const DTypeInfo* info = Find(dtype);
  return info ? info->name : "invalid dtype";
}

bool IsFloat(DType dtype) {
  const DTypeInfo* info = Find(dtype);
  return info && info->dl_code != DlCode::kInt && info->dl_code != DlCode::kUint && info->dl_code != DlCode::kBool;
}
bool IsInteger(DType dtype) { return Find(dtype) && !IsFloat(dtype); }

bool Accepts(DType expected, DType given) {
  if (expected == given) return true;
  const auto packed = [](DType dtype) { return dtype == DType::kI4 || dtype == DType::kU4 || dtype == DType::kF4E2M1; };
  if (packed(expected)) return given == DType::kI8 || given == DType::kU8 || packed(given);
  return Family(expected) != 0 && Family(expected) == Family(given);
}

std::optional<uint64_t> ScalarBits(DType dtype, int64_t value) {
  if (IsFloat(dtype)) return ScalarBits(dtype, double(value));
  const DTypeInfo* info = Find(dtype);
  if (!info || info->bits < 8) return std::nullopt;
  if (dtype == DType::kBool) return value != 0;
  if (info->bits == 64) return uint64_t(value);
  const bool is_signed = info->dl_code == DlCode::kInt;
  const int64_t low = is_signed ? -(int64_t(1) << (info->bits - 1)) : 0;
  const int64_t high = (int64_t(1) << (info->bits - is_signed)) - 1;
  if (value < low || value > high) return std::nullopt;
  return uint64_t(value);
}

std::optional<uint64_t> ScalarBits(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64: return std::bit_cast<uint64_t>(value);
    case DType::kF32:
    case DType::kTF32: return std::bit_cast<uint32_t>(float(value));
    case DType::kF16: return RoundTo(value, 5, 10);
    case DType::kBF16: return RoundTo(value, 8, 7);
    default: return std::nullopt;
  }
}

}  // namespace kiln::runtime
