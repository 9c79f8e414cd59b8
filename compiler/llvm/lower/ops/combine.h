// SPDX-License-Identifier: Apache-2.0
//
// How the values of a reduction are combined.
#pragma once

#include "compiler/llvm/lower/context.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

// Of scalars of the type, or of vectors of it.
Value* Combine(llvm::IRBuilderBase& builder, ir::ReduceKind kind, ir::DType dtype, Value* left, Value* right);
// In a few independent chains: in a single chain each step would wait for the one before it.
Value* CombineAll(llvm::IRBuilderBase& builder, ir::ReduceKind kind, ir::DType dtype, Values values);
Value* ReduceIdentity(llvm::LLVMContext& llvm, ir::ReduceKind kind, ir::DType dtype);
// Types without arithmetic of their own are combined in f32.
ir::DType CombinedType(ir::DType dtype);

}  // namespace kiln::llvm_ir
