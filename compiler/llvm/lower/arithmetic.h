// SPDX-License-Identifier: Apache-2.0
//
// Operations on two scalars of a type, or on vectors of it, that need to know nothing else.
#pragma once

#include "compiler/llvm/llvm_headers.h"
#include "ir/expr/expr.h"

namespace kiln::llvm_ir {

// Sums, differences and products, min and max, bit operations, shifts (whose counts wrap); nullptr for other operations.
llvm::Value* Arithmetic(llvm::IRBuilderBase& builder, ir::ExprOp op, ir::DType dtype, llvm::Value* left, llvm::Value* right);
// kEq … kGe, as i1. A comparison with NaN is false, "not equal" true.
llvm::Value* Comparison(llvm::IRBuilderBase& builder, ir::ExprOp op, ir::DType dtype, llvm::Value* left, llvm::Value* right);

}  // namespace kiln::llvm_ir
