// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/ptx/text.h"

namespace kiln::ptx {

// Sets what executes the instruction. Throws Refusal where its name, or a part of it, is not known.
void Decode(Instruction& instruction);

// Each of these for instructions of its own kind; null where the name is none of them.
Execute DecodeArithmetic(Instruction& instruction);
Execute DecodeBits(Instruction& instruction);
Execute DecodeConversion(Instruction& instruction);
Execute DecodeMemory(Instruction& instruction);
Execute DecodeWarp(Instruction& instruction);
Execute DecodeAsync(Instruction& instruction);
Execute DecodeGroupProduct(Instruction& instruction);
Execute DecodeControl(Instruction& instruction);

}  // namespace kiln::ptx
