// SPDX-License-Identifier: Apache-2.0
//
// Values of which several neighbours fit into one register and are computed at once.
#pragma once

#include <cstdint>

#include "compiler/analysis/facts.h"
#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

// How many neighbours of `count` the value is computed for at once: pairs of 16-bit floats, or as many as one instruction converts from f32.
int32_t PackedElements(const ir::Module& module, const Facts& facts, const target::Target& target, ir::ExprId value, int64_t count);

// Whether the target computes on two such floats at once.
bool HasPairs(const target::Target& target, ir::DType dtype);
// Whether neighbours of an expression are converted together: from f32 to floats of less than 32 bits.
bool IsPackedConversion(const ir::ExprPool& pool, ir::ExprId id);
// Whether an expression is a cast to a 16-bit float of an integer that its mantissa holds.
bool IsSmallInteger(const ir::Module& module, const Facts& facts, ir::ExprId id);
// Whether an expression is the bits of an unsigned integer of the same width.
bool IsPackedBits(const ir::ExprPool& pool, ir::ExprId id);
// 2^m, whose last place is 1: an integer below it becomes the mantissa of 2^m + n.
int64_t MantissaUnit(ir::DType dtype);

}  // namespace kiln::compiler
