// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/constant_bits.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Analysis/ConstantFolding.h>
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

// The constant that an expression of constants is, if it reads the bits of floats as other floats of the same size.
llvm::Constant* Folded(const llvm::Value* value, const llvm::DataLayout& layout) {
  const auto* cast = llvm::dyn_cast<llvm::ConstantExpr>(value);
  if (cast == nullptr || cast->getOpcode() != llvm::Instruction::BitCast || !cast->getType()->isFPOrFPVectorTy()) return nullptr;
  llvm::Type* integer = cast->getType()->getWithNewType(llvm::IntegerType::get(cast->getContext(), cast->getType()->getScalarSizeInBits()));
  llvm::Constant* bits = llvm::ConstantFoldCastOperand(llvm::Instruction::BitCast, cast->getOperand(0), integer, layout);
  llvm::Constant* folded = bits == nullptr ? nullptr : llvm::ConstantFoldCastOperand(llvm::Instruction::BitCast, bits, cast->getType(), layout);
  return folded == nullptr || llvm::isa<llvm::ConstantExpr>(folded) ? nullptr : folded;
}

}  // namespace

void FoldConstantBits(llvm::Function& function) {
  const llvm::DataLayout& layout = function.getParent()->getDataLayout();
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    for (llvm::Use& operand : instruction.operands()) {
      if (llvm::Constant* folded = Folded(operand.get(), layout)) operand.set(folded);
    }
  }
}

}  // namespace kiln::llvm_ir
