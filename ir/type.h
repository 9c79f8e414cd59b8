// SPDX-License-Identifier: Apache-2.0
//
// Element types. The numbers are the wire's (kiln.v1.DType).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln::ir {

enum class DType : uint8_t {
#define KILN_DTYPE(number, id, name, bits, kind) id = number,
#include "ir/dtypes.def"
};

enum class DTypeKind : uint8_t { kBool, kSigned, kUnsigned, kFloat };

std::string_view Name(DType type);  // "f16"
std::optional<DType> DTypeFromName(std::string_view name);
std::optional<DType> DTypeFromNumber(uint32_t number);
int Bits(DType type);  // as stored: bool 8, tf32 32, i4 4
DTypeKind Kind(DType type);

inline bool IsFloat(DType t) { return Kind(t) == DTypeKind::kFloat; }
inline bool IsSigned(DType t) { return Kind(t) == DTypeKind::kSigned; }
inline bool IsUnsigned(DType t) { return Kind(t) == DTypeKind::kUnsigned; }
inline bool IsInteger(DType t) { return IsSigned(t) || IsUnsigned(t); }
inline bool IsFp8(DType t) { return IsFloat(t) && Bits(t) == 8; }
// Bytes of one element; only for types of whole bytes.
inline int Bytes(DType t) { return Bits(t) / 8; }

enum class Space : uint8_t { kGlobal = 1, kShared = 2, kFragment = 3, kLocal = 4, kBarrier = 5 };
std::string_view Name(Space space);
std::optional<Space> SpaceFromName(std::string_view name);

}  // namespace kiln::ir
