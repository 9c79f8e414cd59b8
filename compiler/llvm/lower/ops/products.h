// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by the kind of instruction that computes them. Each has a file of its own.
#pragma once

#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

// Whichever the product's plan says.
void LowerProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm);

// Without a matrix instruction: each thread multiplies and adds for the elements of c it holds, in a loop over k.
void LowerScalarProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm);
// By instructions of single warps.
void LowerWarpProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm);
// Of groups of four warps, which read shared memory themselves through descriptors.
void LowerGroupProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm);
// Of groups of four warps, each of which computes its rows with instructions of single warps.
void LowerProductByWarps(KernelContext& context, Memory& memory, const ir::Gemm& gemm);

// The instruction that the program has chosen.
void LowerMma(KernelContext& context, Memory& memory, const ir::Mma& mma);

// Waits until at most `pending` of the products of groups that were started after this sum's are unfinished.
void WaitForProduct(KernelContext& context, Memory& memory, ir::BufferId sum, int32_t pending);

}  // namespace kiln::llvm_ir
