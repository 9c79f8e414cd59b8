// SPDX-License-Identifier: Apache-2.0
//
// The math operations of exprs.def in LLVM IR without a call of any library: NVPTX and AMDGPU have none.
#pragma once

#include <span>

#include "compiler/llvm/llvm_headers.h"
#include "ir/expr/expr.h"

namespace kiln::llvm_ir {

// What a family does in about one instruction on f32. Null: it has none and the plain path is taken. Results are right
// for NaN and infinities. `flush`: subnormals may be read and written as zero.
class NativeMath {
 public:
  virtual ~NativeMath() = default;
  // Error at most 2 ulp over the whole range, so that the accurate paths use it too.
  virtual llvm::Value* Exp2(llvm::IRBuilderBase&, llvm::Value*, bool /*flush*/) const { return nullptr; }
  virtual llvm::Value* Rsqrt(llvm::IRBuilderBase&, llvm::Value*, bool /*flush*/) const { return nullptr; }
  virtual llvm::Value* DivFull(llvm::IRBuilderBase&, llvm::Value*, llvm::Value*) const { return nullptr; }
  // Only for fast: absolute error about 2^-21 (relative error of log2 is unbounded near 1), of sin and cos only in [-π,
  // π].
  virtual llvm::Value* FastLog2(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
  virtual llvm::Value* FastSin(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
  virtual llvm::Value* FastCos(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
  virtual llvm::Value* FastTanh(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
  virtual llvm::Value* FastSqrt(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
  virtual llvm::Value* FastReciprocal(llvm::IRBuilderBase&, llvm::Value*) const { return nullptr; }
  // Address space of constant tables.
  virtual unsigned ConstantSpace() const { return 0; }
};

// `op` of exprs.def, rules math, math2, math3 and predicate, and mod, on f16, bf16, f32, tf32 or f64. Error bounds are stated
// beside each function in math_f32.cc and math_f64.cc; f16 and bf16 are computed in f32 and rounded once more. `fast`
// of f64 is accurate.
llvm::Value* BuildMath(llvm::IRBuilderBase& builder, const NativeMath& native, ir::ExprOp op, ir::DType dtype, std::span<llvm::Value* const> args,
                       bool fast);

}  // namespace kiln::llvm_ir
