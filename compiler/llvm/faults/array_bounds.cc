// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/array_bounds.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

bool IsOutside(const llvm::DataLayout& layout, const llvm::Value& pointer, llvm::Type* type) {
  llvm::APInt offset(layout.getIndexTypeSizeInBits(pointer.getType()), 0);
  const auto* array = llvm::dyn_cast<llvm::AllocaInst>(pointer.stripAndAccumulateConstantOffsets(layout, offset, /*AllowNonInbounds=*/true));
  if (array == nullptr) return false;
  const auto size = array->getAllocationSize(layout);
  if (!size) return false;
  const int64_t first = offset.getSExtValue(), end = first + int64_t(layout.getTypeStoreSize(type).getFixedValue());
  return first < 0 || end > int64_t(size->getFixedValue());
}

}  // namespace

void DropAccessesOutsideArrays(llvm::Function& function) {
  const llvm::DataLayout& layout = function.getParent()->getDataLayout();
  for (llvm::Instruction& instruction : llvm::make_early_inc_range(llvm::instructions(function))) {
    const llvm::Value* pointer = llvm::getLoadStorePointerOperand(&instruction);
    if (pointer == nullptr || !IsOutside(layout, *pointer, llvm::getLoadStoreType(&instruction))) continue;
    if (llvm::isa<llvm::LoadInst>(instruction)) instruction.replaceAllUsesWith(llvm::Constant::getNullValue(instruction.getType()));
    instruction.eraseFromParent();
  }
}

}  // namespace kiln::llvm_ir
