// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of shared memory, which products by groups of four warps take.
#pragma once

#include "compiler/llvm/lower/context.h"

namespace kiln::llvm_ir {

// How many of them stay the same in all iterations of loops around their products. An optimiser computes those before the loop, where it can,
// and keeps each in registers.
int64_t StandingDescriptors(const KernelContext& context);

}  // namespace kiln::llvm_ir
