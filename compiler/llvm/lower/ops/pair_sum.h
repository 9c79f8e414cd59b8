// SPDX-License-Identifier: Apache-2.0
//
// Sums that the two blocks of a cluster hold parts of.
#pragma once

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

void LowerPairSum(KernelContext& context, Memory& memory, const ir::PairSum& sum);

}  // namespace kiln::llvm_ir
