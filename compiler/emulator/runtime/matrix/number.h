// SPDX-License-Identifier: Apache-2.0
//
// Narrow floating-point types as bits, from their standards: IEEE 754 binary16, bfloat16, OCP 8-bit (OFP8) and AMD's FNUZ kinds.
#pragma once

#include <bit>
#include <cstdint>

#include "ir/type.h"

namespace kiln::emulator {

// The value of `bits`; exact.
float Widen(ir::DType type, uint32_t bits);
// Nearest, ties to even; what is too large becomes infinite. f16 and bf16.
uint16_t Narrow(ir::DType type, float value);

// A table of all values of an 8-bit or 16-bit type, made once.
const float* ValuesOf(ir::DType type);

}  // namespace kiln::emulator
