// SPDX-License-Identifier: Apache-2.0
//
// The values that an element type has. Constants are kept as values of their type, so equal constants are equal bits.
#pragma once

#include <cstdint>

#include "ir/type.h"

namespace kiln::ir {

// The low bits of `value` that an integer or bool type keeps, sign- or zero-extended; for bool: is it not zero.
int64_t WrapTo(DType type, int64_t value);

// `value` rounded to nearest even as a cast to the float type does: what is too large becomes infinite, in the 8-bit
// types the largest finite value. NaN has one bit pattern.
double RoundTo(DType type, double value);

// As a cast to the integer type: truncated, saturated, NaN to 0; for bool: is it not zero.
int64_t SaturateTo(DType type, double value);

// Whether the integer type, or bool, has this number.
bool IsValueOf(DType type, double value);

// Limits of an integer type; those of u64 as their bits.
int64_t MinOf(DType type);
int64_t MaxOf(DType type);

}  // namespace kiln::ir
