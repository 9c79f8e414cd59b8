// SPDX-License-Identifier: Apache-2.0
//
// Element types as tensors at the boundary name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "clients/runtime/artifact.h"

namespace kiln::runtime {

// Codes of DLPack's DLDataTypeCode.
enum class DlCode : uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kF8E4M3FN = 10,
  kF8E4M3FNUZ = 11,
  kF8E5M2 = 12,
  kF8E5M2FNUZ = 13,
  kF4E2M1FN = 17,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // the tile language's: "float16", "float8_e4m3fn"
  uint8_t bits;           // as stored
  DlCode dl_code;
  std::string_view array;  // numpy's type string for host arrays, "<f2"; for types numpy lacks, that of their bits
};

// Null for a number that is no dtype.
const DTypeInfo* Find(DType dtype);
const DTypeInfo* FindDType(std::string_view name);
const DTypeInfo* FindDType(uint8_t dl_code, uint8_t bits, uint16_t lanes);
const DTypeInfo* FindDTypeOfArray(std::string_view type_string);  // "<f2", "|i1", "|b1"; native order only

std::string_view Name(DType dtype);  // "invalid dtype" for none
// Bytes that `elements` take; sub-byte types are packed.
inline uint64_t Bytes(const DTypeInfo& info, uint64_t elements) { return (elements * info.bits + 7) / 8; }

bool IsInteger(DType dtype);  // bool included
bool IsFloat(DType dtype);

// A tensor of `given` may be passed where `expected` is declared: the same type, or one that TileLang's host checks take for it.
bool Accepts(DType expected, DType given);

// The bits of a scalar, as a kernel parameter holds them (little-endian, low bytes). Absent: `value` does not fit the type.
std::optional<uint64_t> ScalarBits(DType dtype, int64_t value);
std::optional<uint64_t> ScalarBits(DType dtype, double value);

}  // namespace kiln::runtime
