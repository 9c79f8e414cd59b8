// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// A load or a store beyond the ends of a thread's array is the program's fault, but LLVM must survive it: AMDGPUPromoteAlloca of LLVM 22, which makes
// vectors of such arrays, uses a value that it has deleted where an element that no array has is stored elsewhere. So loads at places that are
// known to be outside give zeros, and stores there are dropped.
void DropAccessesOutsideArrays(llvm::Function& function);

// It does so, too, where a value that may be anything is stored (undef, poison), as of an element that was never written. Zeros are stored instead.
void StoreZerosForUndefined(llvm::Function& function);

// An element of such a vector, at a place that is known only when the kernel runs, is chosen by as many comparisons as there are elements. The
// largest arrays of a function that would take thousands of them stay in memory.
void KeepArraysInMemory(llvm::Function& function);

}  // namespace kiln::llvm_ir
