// SPDX-License-Identifier: Apache-2.0
//
// Conversions between any two dtypes, as ir/expr/expr.h defines casts, in LLVM IR.
#pragma once

#include "compiler/llvm/llvm_headers.h"
#include "ir/type.h"

namespace kiln::llvm_ir {

// What a family converts in about one instruction. Null: bit arithmetic instead.
class NativeConvert {
 public:
  virtual ~NativeConvert() = default;
  // f32 → the 8 bits of `to`, to nearest even, saturating; NaN stays NaN.
  virtual llvm::Value* NarrowFp8(llvm::IRBuilderBase&, llvm::Value*, ir::DType /*to*/) const { return nullptr; }
  // The 8 bits of `from` → f32.
  virtual llvm::Value* WidenFp8(llvm::IRBuilderBase&, llvm::Value*, ir::DType /*from*/) const { return nullptr; }
  // f32 → f32 rounded to tf32's 10 bits of mantissa.
  virtual llvm::Value* RoundTf32(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
};

// Values as device.h says: fp8 are i8 holding their bits, bool is i1, tf32 is float.
llvm::Value* BuildConvert(llvm::IRBuilderBase& builder, const NativeConvert& native, llvm::Value* v, ir::DType from, ir::DType to);

// The largest finite value of an 8-bit float.
double LargestFp8(ir::DType type);

}  // namespace kiln::llvm_ir
